"""The text of the live views' JavaScript and CSS: a few plain files, put together here in place of a bundler."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files

from ppedu.picture.labels import SHORTER
from ppedu.picture.palette import HATCH, PAGE, PALETTE, SHAPE, WORD, box_colors
from ppedu.picture.scene import KEEPS

SHARED = ("layout.js", "paint.js", "over.js", "view.js", "panel.js")
"""What every live view stands on, in this order."""

CONSTANTS = {
    "PALETTE": PALETTE,
    "COLORS": [{kind: box_colors(kind, dark=dark) for kind in SHAPE} for dark in (False, True)],
    "SHAPE": SHAPE,
    "HATCH": HATCH,
    "WORD": WORD,
    "SHORTER": SHORTER,
    "KEEPS": KEEPS,
}


@lru_cache
def module(name: str) -> str:
    """An ES module: the palette as constants, the shared files, then `name`, which has the module's only export."""
    head = "".join(f"const {key} = {json.dumps(value)};\n" for key, value in CONSTANTS.items())
    return "\n".join([head, *map(_read, SHARED), _read(name)])


@lru_cache
def style(*more: str) -> str:
    """The style sheet of the shared files, and of those named: after the palette's colours, as variables."""
    own = [name for name in PAGE if name.startswith("own")]
    heads = (
        _variables(".ppedu", PAGE, dark=False),
        _variables(".ppedu.ppedu-dark", [name for name in PAGE if name not in own], dark=True),
        f"@media (prefers-color-scheme: dark) {{ {_variables('.ppedu', own, dark=True)} }}",
    )
    return "\n".join([*heads, *map(_read, ("view.css", *more))])


def _variables(selector: str, names: Iterable[str], dark: bool) -> str:
    return f"{selector} {{ {' '.join(f'--ppedu-{name}: {PAGE[name][dark]};' for name in names)} }}"


def _read(name: str) -> str:
    package, _, file = name.rpartition(":")
    return (files(package or "ppedu.picture.live") / ("" if package else "js") / file).read_text("utf-8")
