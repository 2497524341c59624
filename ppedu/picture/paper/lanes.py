"""The lanes themselves: boxes with their numbers, bubbles, phases, strips of what is in flight, the critical path."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from ppedu.core.format import number
from ppedu.picture.labels import SHORTER
from ppedu.picture.palette import HATCH, PALETTE, SHAPE, edge_color, mix
from ppedu.picture.paper.frame import LABEL, SMALLEST, STYLE, WIDER, Frame, Page, axes_of, em, every_nth, page_of
from ppedu.picture.paper.layout import Lane, Track, corners_of, lay_out, steps_of
from ppedu.picture.scene import Scene


class _Box(NamedTuple):
    """A rectangle in times of the picture and heights of the layout, and the texts for it, the fullest first.

    alike: what boxes have in common that are named alike: the timeline, the kind, and whether they are half of a pair.
    """

    alike: tuple[int, str, bool]
    kind: str
    fill: str
    ink: str
    left: float
    right: float
    top: float
    bottom: float
    texts: list[str]


def draw_lanes(scene: Scene, twin: str, headings: bool, in_flight: bool, phases: bool, ax: Axes | None) -> Axes:
    """Draw a scene, with the critical path of those tracks that have one in it."""
    layout = lay_out(scene, headings, in_flight, phases)
    critical = [track for track in scene["tracks"] if "path" in track]
    hidden = {"in flight": not in_flight, "path": not critical}
    key = [entry for entry in scene["key"] if not hidden.get(entry[0])]
    frame = Frame(() if headings else scene["tracks"][0]["title"], scene["label"], scene["caption"], key, twin)
    boxes = [box for lane in layout.lanes for box in _boxes(lane)]
    ax = ax or axes_of(layout, frame)
    with plt.rc_context(STYLE):
        page = page_of(layout, scene, frame, ax)
        _grounds(page, layout.lanes)
        _phases(page, layout.phases, layout.lanes)
        _headings(page, layout.headings)
        _fill(page, boxes)
        _numbers(page, boxes)
        if in_flight:
            _strips(page, layout.lanes, scene)
        for track in critical:
            _outline(page, track, [lane for lane in layout.lanes if lane.track is track])
    return ax


def _boxes(lane: Lane) -> Iterator[_Box]:
    track = lane.track
    path = set(track.get("path", lane.operations))
    for op in lane.operations:
        kinds, names, shades = (track[what][op] for what in ("kind", "name", "shade"))
        aside = 0 if op in path else 2  # off the critical path, the paler colours
        for place, (kind, name, shade) in enumerate(zip(kinds, names.split("&"), shades, strict=True)):
            fill, ink = track["colors"][0][shade][aside : aside + 2]
            top, bottom = SHAPE[kind] if len(kinds) == 1 else (place / len(kinds), (place + 1) / len(kinds))
            yield _Box(
                (id(track), kind, len(kinds) > 1), kind, fill, ink, track["start"][op], track["end"][op],
                lane.top + top * lane.height, lane.top + bottom * lane.height,
                [re.sub(pattern, "", name) for pattern in SHORTER[:3]],
            )  # fmt: skip


def _grounds(page: Page, lanes: Sequence[Lane]) -> None:
    """The lanes from first start to last end: what no box covers is bubble."""
    for lane in lanes:
        if not lane.track["kind"] and lane.rank == 0:
            page.text(lane.end / 2, lane.middle, "no operation ran", page.size(11, lane.height), PALETTE["quiet"])
    page.polygons([corners_of(0, lane.end, lane.top, lane.bottom) for lane in lanes], PALETTE["idle"], zorder=1)


def _phases(page: Page, marks: Sequence[tuple[float, Track]], lanes: Sequence[Lane]) -> None:
    """A bracket for each phase above the lanes, and its limits as dashes in every lane, by that lane's own timeline."""
    quiet, brackets = PALETTE["quiet"], []
    inset, tick = 1.5 / page.dx, 3 / page.dy
    for top, track in marks:
        y = top - 5
        brackets += [
            [(a + inset, y + tick), (a + inset, y), (b - inset, y), (b - inset, y + tick)]
            for _, a, b in track["phases"]
        ]
        _phase_names(page, top - 12, track["phases"])
    shown = lanes if marks else ()
    dashes = [[(a, lane.top), (a, lane.bottom)] for lane in shown for _, a, _ in lane.track["phases"][1:]]
    page.ax.add_collection(LineCollection(brackets, colors=quiet, linewidths=1.1), autolim=False)
    dashed = LineCollection(dashes, colors=quiet, linewidths=0.9, linestyles=(0, (3, 3)), zorder=1.5)
    page.ax.add_collection(dashed, autolim=False)


def _phase_names(page: Page, y: float, limits: Sequence[tuple[str, float, float]]) -> None:
    """Names in the middle of their phases; the first and the last may reach over a narrow one, towards the middle."""
    size = page.size(11, 14)
    taken: list[tuple[float, float]] = []
    for name, a, b in sorted(limits, key=lambda limit: limit[1] - limit[2]):
        half = em(name) * size / 2 / page.dx + 3 / page.dx
        x = (a + b) / 2
        if half > (b - a) / 2 and name != "steady":
            x = a + half if name == "warm-up" else b - half
        elif half > (b - a) / 2:
            continue
        if size >= SMALLEST and all(x + half <= left or right <= x - half for left, right in taken):
            taken.append((x - half, x + half))
            page.text(x, y, name, size, PALETTE["quiet"])


def _headings(page: Page, headings: Sequence[tuple[float, str]]) -> None:
    for y, text in headings:
        room = page.dx * page.ax.get_xlim()[1] / em(text, True) / WIDER
        page.text(0, y, text, max(SMALLEST, min(page.size(13.5, 20), room)), ha="left", weight="bold")


def _rounded(page: Page, box: _Box) -> list[tuple[float, float]]:
    """The outline of a box: a hair apart from its neighbours, round where it is large enough to show."""
    width = (box.right - box.left) * page.dx
    gap = min(0.7, 0.08 * width) / page.dx
    left, right = box.left + gap, box.right - gap
    radius = min(2.5, 0.2 * width, 0.2 * (box.bottom - box.top) * page.dy)
    if radius < 0.8:
        return corners_of(left, right, box.top, box.bottom)
    rx, ry = radius / page.dx, radius / page.dy
    points: list[tuple[float, float]] = []
    for (x, y), inx, iny in zip(
        corners_of(left, right, box.top, box.bottom), (rx, -rx, -rx, rx), (ry, ry, -ry, -ry), strict=True
    ):
        arc = [(x, y + iny), (x + 0.29 * inx, y + 0.29 * iny), (x + inx, y)]
        points += arc if inx * iny > 0 else arc[::-1]  # always clockwise
    return points


def _fill(page: Page, boxes: Sequence[_Box]) -> None:
    """All boxes of one fill are one collection: a thousand boxes cost about as much as ten."""
    groups: dict[tuple[str, str], list[_Box]] = defaultdict(list)
    for box in boxes:
        groups[box.kind, box.fill].append(box)
    for (kind, fill), group in groups.items():
        outlines = [_rounded(page, box) for box in group]
        narrow = min(box.right - box.left for box in group) * page.dx < 3
        page.polygons(outlines, fill, edgecolor=edge_color(fill), linewidth=0 if narrow else 0.5)
        if kind in HATCH:  # apart, for its colour is softer than the edge's: text on it stays legible
            page.polygons(outlines, "none", edgecolor=mix(fill, 0.2, PALETTE["ink"]), hatch=HATCH[kind])


def _numbers(page: Page, boxes: Sequence[_Box]) -> None:
    """Name the boxes, in nearly one font size: with the letter where that fits, else with the number alone."""
    groups: dict[tuple[int, str, bool], list[_Box]] = defaultdict(list)
    for box in boxes:
        groups[box.alike].append(box)
    chosen = {alike: choice for alike, group in groups.items() if (choice := _level(page, group)) is not None}
    short = {track for (track, _, _), (level, _) in chosen.items() if level > 0}
    for alike, (level, size) in chosen.items():  # stage numbers on all of a timeline's boxes or on none
        chosen[alike] = max(level, int(alike[0] in short)), size
    smallest = min((size for _, size in chosen.values()), default=0.0)
    for alike, (level, largest) in chosen.items():
        size = min(largest, 1.3 * smallest)
        for box in groups[alike]:
            text = next((text for text in box.texts[level:] if _room(page, box, text) > size - 0.05), None)
            if text is not None:
                x, y = (box.left + box.right) / 2, (box.top + box.bottom) / 2
                page.text(x, y, text, size, box.ink, weight="bold", zorder=3).set_in_layout(False)


def _room(page: Page, box: _Box, text: str) -> float:
    """The largest font size in which a text fits into a box."""
    wide = ((box.right - box.left) * page.dx - 3) / em(text, True)
    return min(LABEL, wide, 0.72 * (box.bottom - box.top) * page.dy)


def _level(page: Page, boxes: Sequence[_Box]) -> tuple[int, float] | None:
    """The fullest text that nearly all boxes of a group have room for, and its size; None where none has."""
    for level in range(len(boxes[0].texts)):
        rooms = sorted(_room(page, box, box.texts[level]) for box in boxes)
        if (size := rooms[len(rooms) // 10]) >= SMALLEST:
            return level, size
    return None


def _strips(page: Page, lanes: Sequence[Lane], scene: Scene) -> None:
    """What is in flight under each lane, as a share of the largest peak in the picture: one scale for all."""
    largest, longest = scene["peak"] or 1, scene["span"] or 1.0
    size = max(SMALLEST, page.size(11, 1.4 * lanes[0].strip))
    every = every_nth(page, [lane.top for lane in lanes], size)
    hair = 0.8 / page.dy  # so that one activation is seen even beside 64
    grounds, areas = [], []
    for index, lane in enumerate(lanes):
        bottom, peak = lane.strip_bottom, lane.track["peaks"][lane.rank]
        grounds.append(corners_of(0, lane.end, bottom - lane.strip, bottom))
        steps = steps_of(lane.track, lane.rank)
        curve = [(time, bottom - (count and max(count * lane.strip / largest, hair))) for time, count in steps]
        areas.append([(0, bottom), *curve, (lane.end, bottom)])
        if index % every == 0:
            x = longest if lane.track["word"] else lane.end
            page.beside(x, bottom - lane.strip / 2, f"peak {number(peak, 3)}", size)
    page.polygons(grounds, PALETTE["strip"], zorder=1)
    page.polygons(areas, PALETTE["in flight"])


def _outline(page: Page, track: Track, lanes: Sequence[Lane]) -> None:
    """The critical path: its boxes outlined, and a line where it changes rank."""
    on = [(next(lane for lane in lanes if op in lane.operations), op) for op in track["path"]]
    start, end, ink = track["start"], track["end"], PALETTE["ink"]
    edges = [corners_of(start[op], end[op], lane.top, lane.bottom) for lane, op in on]
    hops = [[(end[a], one.middle), (start[b], two.middle)] for (one, a), (two, b) in pairwise(on) if one is not two]
    page.polygons(edges, "none", edgecolor=ink, linewidth=1.8, zorder=4)
    page.ax.add_collection(LineCollection(hops, colors=ink, linewidths=1.8, zorder=1.8), autolim=False)
