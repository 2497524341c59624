"""Print constraints.txt: a pin for every package that `ppedu[lab,test,dev]` brings, as installed here.

    .venv/bin/python scripts/pin.py > constraints.txt

A pin that has no release for an older Python that ppedu supports is limited to the newer ones by a marker.
"""

from __future__ import annotations

import importlib.metadata as metadata
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

HEADER = """\
# What `make setup` installs: exact versions, so that every machine learns from the same pictures and numbers.
# pyproject.toml says what ppedu itself accepts. Written by scripts/pin.py.
"""
OLDEST = Version("3.10")


def closure(name: str, extras: frozenset[str]) -> Iterator[str]:
    """The names of all packages that `name[extras]` brings on this machine."""
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(canonicalize_name(name), extras)]
    while todo:
        item = todo.pop()
        if item in seen:
            continue
        seen.add(item)
        for text in metadata.requires(item[0]) or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in (item[1] or {""})):
                todo.append((canonicalize_name(needed.name), frozenset(needed.extras)))
    return iter({found for found, _ in seen} - {canonicalize_name(name)})


def pin(name: str) -> str:
    """'name==version', with a marker where that version needs a newer Python than the oldest that ppedu supports."""
    found = metadata.distribution(name)
    line = f"{name}=={Version(found.version).public}"
    for rule in SpecifierSet(found.metadata.get("Requires-Python", "")):
        if rule.operator == ">=" and Version(rule.version) > OLDEST:
            release = rule.version.removesuffix(".0") if rule.version.count(".") > 1 else rule.version
            key = "python_full_version" if release.count(".") > 1 else "python_version"
            line += f' ; {key} >= "{release}"'
    return line


if __name__ == "__main__":
    print(HEADER + "\n".join(sorted(map(pin, closure("ppedu", frozenset({"lab", "test", "dev", ""}))))))
