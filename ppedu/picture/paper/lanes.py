"""The lanes themselves: boxes with their numbers, bubbles, phases, strips of what is in flight, the critical path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from ppedu.core.timeline import Span, Timeline
from ppedu.picture.palette import HATCH, PALETTE, SHAPE
from ppedu.picture.paper.frame import Frame, Page, em, every_nth, key_of, margins_of, new_figure, page_of
from ppedu.picture.paper.style import LABEL, SMALLEST, STYLE, edge_color, ink_on, mix, soft
from ppedu.picture.paper.tracks import Lane, Layout, Track, caption_of, stages_on, time_label_of


class _Box(NamedTuple):
    """A rectangle in times of the picture and heights of the layout, and the texts for it, the fullest first.

    alike: what boxes have in common that are named alike: the timeline, the kind, and whether they are half of a pair.
    """

    alike: tuple[int, str, bool]
    kind: str
    fill: str
    left: float
    right: float
    top: float
    bottom: float
    texts: tuple[str, ...]


def draw_lanes(
    layout: Layout, tracks: Sequence[Track], title: tuple[str, ...], critical: Sequence[Track], ax: Axes | None
) -> Axes:
    in_flight = any(lane.strip for lane in layout.lanes)
    key = key_of(tracks, in_flight, bool(critical))
    frame = Frame(title, time_label_of(tracks), caption_of(tracks), key)
    paths = {id(track): set(track.timeline.critical_path()) for track in critical}
    boxes = [box for lane in layout.lanes for box in _boxes(lane, paths.get(id(lane.track)))]
    ax = new_figure(layout.height, margins_of(layout, frame)) if ax is None else ax
    with plt.rc_context(STYLE):
        page = page_of(layout, tracks, frame, ax)
        _grounds(page, layout)
        _phases(page, layout)
        _headings(page, layout)
        _fill(page, boxes)
        _numbers(page, boxes)
        if in_flight:
            _strips(page, layout)
        for track in critical:
            _outline(page, [lane for lane in layout.lanes if lane.track is track])
    return ax


def _boxes(lane: Lane, path: set[Span] | None) -> Iterator[_Box]:
    schedule = lane.track.timeline.schedule
    stages = {stage: index for index, stage in enumerate(stages_on(schedule, lane.rank))}
    for span in lane.track.timeline.spans_of(lane.rank):
        parts = span.action.actions
        for place, part in enumerate(parts):
            kind = part.kind.value
            top, bottom = SHAPE[kind] if len(parts) == 1 else (place / len(parts), (place + 1) / len(parts))
            pale = 0.5 * stages.get(part.stage, 0) / max(1, len(stages) - 1)
            fill = mix(PALETTE[kind], pale if path is None or span in path else 0.5 + pale / 2)
            short = f"{kind}{part.microbatch}"
            yield _Box(
                (id(lane.track), kind, len(parts) > 1), kind, fill, lane.track.at(span.start), lane.track.at(span.end),
                lane.top + top * lane.height, lane.top + bottom * lane.height,
                (short if schedule.one_stage_per_rank else str(part), short, str(part.microbatch)),
            )  # fmt: skip


def _grounds(page: Page, layout: Layout) -> None:
    """The lanes from first start to last end: what no box covers is bubble."""
    longest = max(lane.track.makespan for lane in layout.lanes) or 1.0
    grounds = [corners_of(0, lane.track.makespan or longest, lane.top, lane.bottom) for lane in layout.lanes]
    for lane in layout.lanes:
        if not lane.track.timeline.spans and lane.rank == 0:
            page.text(longest / 2, lane.middle, "no operation ran", page.size(11, lane.height), PALETTE["quiet"])
    page.ax.add_collection(PolyCollection(grounds, facecolor=PALETTE["idle"], linewidth=0, zorder=1), autolim=False)


def _limits(track: Track) -> list[tuple[str, float, float]]:
    """The phases by time that are not empty; a run that was stopped has none."""
    if not track.timeline.complete:
        return []
    phases = track.timeline.phases()
    named = (("warm-up", phases.warmup), ("steady", phases.steady), ("cool-down", phases.cooldown))
    return [(name, track.at(start), track.at(end)) for name, (start, end) in named if end > start]


def _phases(page: Page, layout: Layout) -> None:
    """A bracket for each phase above the lanes, and its limits as dashes in every lane, by that lane's own timeline."""
    quiet = PALETTE["quiet"]
    brackets, dashes = [], []
    for top, track in layout.phases:
        limits = _limits(track)
        y, inset, tick = top - 5, 1.5 / page.dx, 3 / page.dy
        brackets += [
            [(a + inset, y + tick), (a + inset, y), (b - inset, y), (b - inset, y + tick)] for _, a, b in limits
        ]
        _phase_names(page, top - 12, limits)
    for lane in layout.lanes if layout.phases else ():
        dashes += [[(a, lane.top), (a, lane.bottom)] for _, a, _ in _limits(lane.track)[1:]]
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


def _headings(page: Page, layout: Layout) -> None:
    for y, text in layout.headings:
        size = page.size(13.5, 20)
        while em(text, True) * size > page.dx * page.ax.get_xlim()[1] and size > SMALLEST:
            size -= 0.5
        page.text(0, y, text, size, ha="left", weight="bold")


def corners_of(left: float, right: float, top: float, bottom: float) -> list[tuple[float, float]]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _rounded(page: Page, box: _Box) -> list[tuple[float, float]]:
    """The outline of a box: a hair apart from its neighbours, round where it is large enough to show."""
    width = (box.right - box.left) * page.dx
    gap = min(0.7, 0.08 * width) / page.dx
    left, right = box.left + gap, box.right - gap
    radius = min(2.5, 0.2 * width, 0.2 * (box.bottom - box.top) * page.dy)
    if radius < 0.8:
        return corners_of(left, right, box.top, box.bottom)
    rx, ry = radius / page.dx, radius / page.dy
    corners = (
        (left, box.top, rx, ry),
        (right, box.top, -rx, ry),
        (right, box.bottom, -rx, -ry),
        (left, box.bottom, rx, -ry),
    )
    points: list[tuple[float, float]] = []
    for x, y, inx, iny in corners:
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
        line: Any = {"edgecolor": edge_color(fill), "linewidth": 0 if narrow else 0.5}
        page.ax.add_collection(PolyCollection(outlines, facecolor=fill, **line, zorder=2), autolim=False)
        if kind in HATCH:  # apart, for its colour is softer than the edge's: text on it stays legible
            line = {"edgecolor": soft(fill), "linewidth": 0, "hatch": HATCH[kind]}
            page.ax.add_collection(PolyCollection(outlines, facecolor="none", **line, zorder=2), autolim=False)


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
                page.text(x, y, text, size, ink_on(box.fill), weight="bold", zorder=3).set_in_layout(False)


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


def _strips(page: Page, layout: Layout) -> None:
    """What is in flight under each lane, as a share of the largest peak in the picture: one scale for all."""
    largest = max(max(lane.track.peaks) for lane in layout.lanes) or 1
    longest = max(lane.track.makespan for lane in layout.lanes) or 1.0
    size = max(SMALLEST, page.size(11, 1.4 * layout.lanes[0].strip))
    every = every_nth(page, [lane.top for lane in layout.lanes], size)
    hair = 0.8 / page.dy  # so that one activation is seen even beside 64
    grounds, areas = [], []
    for index, lane in enumerate(layout.lanes):
        track, bottom, end = lane.track, lane.strip_bottom, lane.track.makespan or longest
        grounds.append(corners_of(0, end, bottom - lane.strip, bottom))
        peak, unit = track.timeline.peak_in_flight[lane.rank], track.size * lane.strip / largest
        heights = [0.0, *(max(count * unit, hair) for count in range(1, peak + 1))]
        curve = [(track.at(time), bottom - heights[count]) for time, count in curve_of(track.timeline, lane.rank)]
        areas.append([(0, bottom), *curve, (end, bottom)])
        if index % every == 0:
            page.beside(
                longest if lane.name else end, bottom - lane.strip / 2, f"peak {track.peaks[lane.rank]:.3g}", size
            )
    pale = mix(PALETTE["idle"], 0.55)
    page.ax.add_collection(PolyCollection(grounds, facecolor=pale, linewidth=0, zorder=1), autolim=False)
    page.ax.add_collection(PolyCollection(areas, facecolor=PALETTE["in flight"], linewidth=0, zorder=2), autolim=False)


def curve_of(timeline: Timeline, rank: int) -> Iterator[tuple[float, int]]:
    """The corners of a rank's step curve."""
    before = 0
    for time, count in (*timeline.in_flight(rank), (timeline.end, 0)):
        yield time, before
        yield time, count
        before = count


def _outline(page: Page, lanes: Sequence[Lane]) -> None:
    """The critical path: its boxes outlined, and a line where it changes rank."""
    track = lanes[0].track
    lane_of = {lane.rank: lane for lane in lanes}
    path = track.timeline.critical_path()
    edges = [
        corners_of(track.at(span.start), track.at(span.end), lane.top, lane.bottom)
        for span in path
        for lane in (lane_of[span.rank],)
    ]
    hops = [
        [(track.at(a.end), lane_of[a.rank].middle), (track.at(b.start), lane_of[b.rank].middle)]
        for a, b in pairwise(path)
        if a.rank != b.rank
    ]
    ink = PALETTE["ink"]
    page.ax.add_collection(
        PolyCollection(edges, facecolor="none", edgecolor=ink, linewidth=1.8, zorder=4), autolim=False
    )
    page.ax.add_collection(LineCollection(hops, colors=ink, linewidths=1.8, zorder=1.8), autolim=False)
