"""Ranks keep the memory that they free: the same tensor once more costs no page faults."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
from runtime_helpers import in_ranks

from ppedu.runtime.processes.malloc import roomy_malloc

_COUNT = """
import resource, torch
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def fill():
    before = faults()
    torch.ones(16 << 20)  # 64 MiB, freed at once
    return faults() - before
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc has other ways")


def refilled(work, context) -> int:
    """Page faults of the third of three equal tensors, each freed before the next."""
    names: dict = {}
    exec(_COUNT, names)
    return [names["fill"]() for _ in range(3)][-1]


@glibc
def test_a_rank_takes_freed_memory_again():
    assert in_ranks(refilled, [None])[0] < 100  # 64 MiB are 16384 pages of 4 KiB


@glibc
def test_without_it_every_page_comes_anew():
    """That the test above can fail."""
    plain = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    code = _COUNT + "print([fill() for _ in range(3)][-1])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) > 1000


def test_the_environment_is_as_it_was(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    with roomy_malloc():
        assert "glibc.malloc.hugetlb=1" in os.environ["GLIBC_TUNABLES"]
    assert "GLIBC_TUNABLES" not in os.environ
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=1")
    with roomy_malloc():
        assert os.environ["GLIBC_TUNABLES"].startswith(
            "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=1:glibc.malloc.trim"
        )
        assert "hugetlb=1" not in os.environ["GLIBC_TUNABLES"]
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=1"
