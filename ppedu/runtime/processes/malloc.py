"""Memory for tensors without page faults: how the malloc of ranks is set up, where it is glibc's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_TUNABLES = {
    "glibc.malloc.trim_threshold": 1 << 30,  # keep what is freed: a rank lives for one run, and its peak stays the same
    "glibc.malloc.mmap_threshold": 1 << 30,  # large tensors too, which would go back to the system at once
    "glibc.malloc.hugetlb": 1,  # and ask for pages of 2 MiB (madvise), of which a stage needs a few and not thousands
}


@contextmanager
def roomy_malloc() -> Iterator[None]:
    """Processes that are started in here keep their freed memory, on huge pages. (What is no glibc takes no notice.)

    Otherwise every operation gets hundreds of fresh pages of 4 KiB, a fault each, and its tensors are spread over
    thousands of them, each of which the processor has to look up: an unpaced run took a tenth longer.

    What GLIBC_TUNABLES says already comes first.
    """
    before = os.environ.get("GLIBC_TUNABLES")
    mine = [f"{name}={value}" for name, value in _TUNABLES.items() if name not in (before or "")]
    os.environ["GLIBC_TUNABLES"] = ":".join([*([before] if before else []), *mine])
    try:
        yield
    finally:
        if before is None:
            del os.environ["GLIBC_TUNABLES"]
        else:
            os.environ["GLIBC_TUNABLES"] = before
