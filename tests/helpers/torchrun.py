"""A script under torchrun, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def torchrun(folder: Path, script: str, ranks: int) -> subprocess.CompletedProcess[str]:
    """How a script ended that torchrun ran on so many ranks. Its one argument is the folder; it may import helpers of tests."""
    path = folder / "script.py"
    path.write_text(script, "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [*command, str(path), str(folder)], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
