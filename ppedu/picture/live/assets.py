"""The text of the live views' JavaScript and CSS: a few plain files, put together here in place of a bundler."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files

from ppedu.picture.palette import HATCH, PALETTE, SHAPE, WORD
from ppedu.picture.scene import KEEPS

SHARED = ("layout.js", "paint.js", "over.js", "view.js", "panel.js")
"""What every live view stands on, in this order."""


@lru_cache
def module(name: str) -> str:
    """An ES module: the palette as constants, the shared files, then `name`, which has the module's only export."""
    constants = {"PALETTE": PALETTE, "SHAPE": SHAPE, "HATCH": HATCH, "WORD": WORD, "KEEPS": KEEPS}
    head = "".join(f"const {key} = {json.dumps(value)};\n" for key, value in constants.items())
    return "\n".join([head, *map(_read, SHARED), _read(name)])


@lru_cache
def style(*more: str) -> str:
    """The style sheet of the shared files, and of those named."""
    return "\n".join(map(_read, ("view.css", *more)))


def _read(name: str) -> str:
    package, _, file = name.rpartition(":")
    return (files(package or "ppedu.picture.live") / ("" if package else "js") / file).read_text("utf-8")
