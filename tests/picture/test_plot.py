"""Pictures: no text over another one, kinds that differ without colour, figures in titles, and nothing left behind."""

from __future__ import annotations

import io
import itertools
import json
import random
import time
from collections import Counter
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.offsetbox import AnchoredOffsetbox, TextArea
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule, dependencies
from ppedu.core.simulate import simulate
from ppedu.core.spans import Span
from ppedu.core.timeline import Timeline
from ppedu.picture.palette import PALETTE, SHAPE, ink_on, mix
from ppedu.picture.paper import plot_compare, plot_memory, plot_timeline
from ppedu.picture.scene import scene, tracks_of
from ppedu.schedules import (
    SCHEDULES,
    dualpipe,
    dualpipev,
    forward_only,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    zb_h1,
    zb_v,
)

GOLDEN = Path(__file__).parents[1] / "golden"
KINDS = "FBIW"


@pytest.fixture(autouse=True)
def _closed():
    plt.close("all")
    yield
    plt.close("all")


def golden(name: str, title: str, **costs: float) -> Timeline:
    schedule = Schedule.from_csv((GOLDEN / f"{name}.csv").read_text("utf-8"), name=title)
    return simulate(schedule, Costs(**costs))


def measured(prediction: Timeline, seed: int = 0, cut: int | None = None, of: str = "") -> Timeline:
    """A run as a clock sees it: every operation a little late and up to 8 % longer, starting at an odd time."""
    draw, schedule = random.Random(seed), prediction.schedule
    ended, free, spans = {}, [0.0] * schedule.num_ranks, []
    for span in sorted(prediction.spans, key=lambda s: (s.start, s.end)):
        needed = (d for part in span.action.actions for d in dependencies(part, schedule))
        start = max([free[span.rank], *(ended[d] for d in needed if d in ended)]) + draw.uniform(0, 0.1) * span.duration
        end = free[span.rank] = start + span.duration * draw.uniform(1, 1.08)
        ended.update(dict.fromkeys(span.action.actions, end))
        spans.append(Span(span.action, span.rank, 100.3 + start, 100.3 + end))
    said = f"measured: 4 CPU processes on 2 cores, paced {of}".strip()
    return Timeline(schedule, tuple(spans[:cut]), said, prediction.unit, measured=True)


def seconds(build=one_f_one_b, p=4, m=8) -> Timeline:
    return simulate(build(p, m), Costs(forward=0.02, backward=0.02, unit="s"))


def in_halves(schedule: Schedule) -> Timeline:
    """Of a model of which a stage takes 20 ms forward where a rank has one of them, and half of that where it has two."""
    return simulate(schedule, Costs(0.01, backward=0.02, unit="s"))


def drawn_texts(ax: Axes, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Bbox]]:
    """Every text that the renderer draws, with the box that it fills, in pixels."""
    found: list[tuple[str, Bbox]] = []
    original = Text.draw

    def draw(self: Text, renderer, *args, **kwargs):
        if self.get_visible() and self.get_text().strip():
            found.append((self.get_text(), Text.get_window_extent(self, renderer)))
        return original(self, renderer, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Text, "draw", draw)
        ax.figure.canvas.draw()
    return found


def collisions(texts: list[tuple[str, Bbox]]) -> list[str]:
    """Pairs of texts of which one covers more than half a pixel of the other."""
    x0, y0, x1, y1 = np.array([box.extents for _, box in texts]).T
    wide = np.minimum.outer(x1, x1) - np.maximum.outer(x0, x0)
    high = np.minimum.outer(y1, y1) - np.maximum.outer(y0, y0)
    pairs = np.argwhere(np.triu((wide > 0.5) & (high > 0.5), k=1))
    return [f"{texts[a][0]!r} over {texts[b][0]!r}" for a, b in pairs]


def outside(ax: Axes, texts: list[tuple[str, Bbox]]) -> list[str]:
    page = ax.figure.bbox.padded(0.5)
    return [t for t, box in texts if box.x0 < page.x0 or box.y0 < page.y0 or box.x1 > page.x1 or box.y1 > page.y1]


def clipped(ax: Axes) -> list[str]:
    """Texts that the edge of the Axes cuts off. They are drawn within it only, so nothing of them is over the page's edge."""
    texts = [text for text in ax.texts if text.get_clip_on() and text.get_clip_box() is not None]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    return [t for t, box in boxes if box.x0 < ax.bbox.x0 - 0.5 or box.x1 > ax.bbox.x1 + 0.5]


def in_boxes(ax: Axes) -> list[Text]:
    return [text for text in ax.texts if text.get_zorder() == 3 and text.get_fontweight() == "bold"]


def labels(ax: Axes) -> list[str]:
    """What is written into boxes."""
    return [text.get_text() for text in in_boxes(ax)]


def said(ax: Axes) -> str:
    return "\n".join(text.get_text() for text in [ax.title, ax._left_title, *ax.texts])


# text that fits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "p", "m", "backward", "in_flight"),
    [
        (one_f_one_b, 1, 1, 1, True),
        (one_f_one_b, 2, 1, 1, False),
        (gpipe, 2, 3, 2, True),
        (naive, 4, 1, 1, False),
        (naive, 4, 8, 1, True),
        (forward_only, 8, 2, 1, False),
        (one_f_one_b, 4, 8, 2, False),
        (gpipe, 4, 32, 1, True),
        (one_f_one_b, 8, 32, 2, False),
        (one_f_one_b, 8, 32, 1, True),
        (one_f_one_b, 16, 4, 1, True),
        (gpipe, 16, 64, 1, True),
        (one_f_one_b, 16, 64, 1, False),
    ],
)
def test_no_text_is_over_another_or_cut_off(build, p, m, backward, in_flight, monkeypatch):
    ax = plot_timeline(simulate(build(p, m), Costs(backward=backward)), in_flight=in_flight)
    texts = drawn_texts(ax, monkeypatch)
    assert collisions(texts) == []
    assert outside(ax, texts) == []
    assert clipped(ax) == []


def test_the_test_above_can_fail(monkeypatch):
    ax = plot_timeline(simulate(gpipe(4, 8)))
    ax.text(*next(text.get_position() for text in ax.texts if text.get_text() == "F3"), "F3 once more")
    ax.figure.text(0.99, 0.5, "over the edge of the picture")
    texts = drawn_texts(ax, monkeypatch)
    assert any("'F3 once more' over" in pair or "over 'F3 once more'" in pair for pair in collisions(texts))
    assert outside(ax, texts) == ["over the edge of the picture"]


def pictures() -> dict[str, object]:
    pair = seconds(), measured(seconds())
    three = [simulate(build(4, 8)) for build in (naive, gpipe, one_f_one_b)]
    slow = simulate(one_f_one_b(4, 8), Costs(forward=[1, 2, 1, 1], backward=[2, 4, 2, 2], transfer=0.5))
    return {
        "pair": lambda: plot_timeline(*pair),
        "pair, all": lambda: plot_timeline(*pair, in_flight=True, critical_path=True),
        "pair of 8": lambda: plot_timeline(seconds(p=8, m=16), measured(seconds(p=8, m=16))),
        "slow stage": lambda: plot_timeline(slow, critical_path=True),
        "stopped": lambda: plot_timeline(measured(seconds(), cut=21), in_flight=True),
        "empty": lambda: plot_timeline(measured(seconds(), cut=0), in_flight=True),
        "ZB-H1": lambda: plot_timeline(golden("zbh1_p4_m8", "ZB-H1"), in_flight=True),
        "ZB-V": lambda: plot_timeline(golden("zbv_p4_m8", "ZB-V")),
        "interleaved": lambda: plot_timeline(golden("interleaved_p4_m8_v2", "interleaved", backward=2), in_flight=True),
        "DualPipe": lambda: plot_timeline(simulate(dualpipe(4, 8), Costs(1, backward=2)), in_flight=True),
        "DualPipeV of 8": lambda: plot_timeline(simulate(dualpipev(8, 20), Costs(0.5, backward=1))),
        "other stages": lambda: plot_compare(
            [
                simulate(one_f_one_b(4, 8), Costs(1, backward=2)),
                simulate(interleaved(4, 8), Costs(0.5, backward=1)),
                simulate(zb_h1(4, 8), Costs(1, backward=2)),
                simulate(zb_v(4, 8), Costs(0.5, backward=1)),
            ]
        ),
        "other stages, measured": lambda: plot_compare(
            [t for one in (interleaved(4, 8), zb_v(4, 8)) for t in (in_halves(one), measured(in_halves(one)))],
            in_flight=False,
        ),
        "a long caption": lambda: plot_compare(
            [
                t
                for build in (one_f_one_b, interleaved, zb_h1, zb_v, dualpipe)
                for t in (in_halves(build(4, 8)), measured(in_halves(build(4, 8)), of=f"late {build.__name__}"))
            ],
            in_flight=False,
        ),
        "memory of other stages": lambda: plot_memory([simulate(one_f_one_b(4, 8)), simulate(zb_v(4, 8))]),
        "three": lambda: plot_compare(three),
        "three phases": lambda: plot_compare(three, in_flight=False, phases=True),
        "two by two": lambda: plot_compare([*pair, seconds(gpipe), measured(seconds(gpipe))]),
        "sixteen": lambda: plot_compare([simulate(gpipe(16, 16)), simulate(one_f_one_b(16, 16))]),
        "memory": lambda: plot_memory(three),
        "memory of 16": lambda: plot_memory([simulate(gpipe(16, 64)), simulate(one_f_one_b(16, 64))]),
        "memory in bytes": lambda: plot_memory(three, bytes_per_microbatch=3.4e6),
        "memory over time": lambda: plot_memory(pair, rank=0),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", pictures())
def test_no_text_is_over_another_or_cut_off_in_any_kind_of_picture(name, monkeypatch):
    """On the screen, and as the command line saves it: letters lie on whole pixels, and so are not equally wide."""
    ax = pictures()[name]()
    for dpi in (ax.figure.dpi, 150, 100):
        ax.figure.set_dpi(dpi)
        texts = drawn_texts(ax, monkeypatch)
        assert collisions(texts) == []
        assert outside(ax, texts) == []
        assert clipped(ax) == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [(8, 3.2), (6, 2.5), (4, 2.5), (12, 8)])
def test_no_text_is_over_another_on_axes_of_another_size(size, monkeypatch):
    figure, ax = plt.subplots(figsize=size, layout="constrained")
    assert plot_timeline(simulate(one_f_one_b(4, 8)), in_flight=True, ax=ax) is ax
    assert collisions(drawn_texts(ax, monkeypatch)) == []
    assert plt.get_fignums() == [figure.number]


def test_a_label_stays_inside_its_own_box():
    t = measured(seconds(m=12))
    ax = plot_timeline(t)
    ax.figure.canvas.draw()
    inverse = ax.transData.inverted()
    lanes = ax.get_yticks()
    for text in in_boxes(ax):
        box = text.get_window_extent().transformed(inverse)
        rank = int(np.argmin(abs(lanes - (box.y0 + box.y1) / 2)))
        around = [
            s for s in t.spans_of(rank) if (s.start - t.start) * 1e3 <= box.x0 and box.x1 <= (s.end - t.start) * 1e3
        ]
        assert [t.schedule.short(span.action)[-len(text.get_text()) :] for span in around] == [text.get_text()]
    assert len(in_boxes(ax)) == len(t.spans)


def test_numbers_go_before_they_overlap():
    full = labels(plot_timeline(simulate(one_f_one_b(4, 8))))
    assert sorted(full) == sorted(f"{k}{i}" for k in "FB" for i in range(8) for _ in range(4))
    only_numbers = labels(plot_timeline(simulate(naive(4, 8))))
    assert sorted(only_numbers) == sorted(str(i) for i in range(8) for _ in range(8))
    assert labels(plot_timeline(simulate(one_f_one_b(16, 64)))) == []


def test_a_stage_is_named_where_a_rank_holds_several():
    names = labels(plot_timeline(golden("interleaved_p4_m8_v2", "interleaved", backward=2)))
    assert {"B0", "B7", "F0"} <= set(names)  # a forward has no room for its stage: all are told by their shade
    assert {"0F0", "7F7"} <= set(labels(plot_timeline(golden("interleaved_p4_m8_v2", "interleaved"))))


# kinds without colour


def luminance(color: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a) + 0.05, luminance(b) + 0.05), reverse=True)
    return high / low


def test_kinds_differ_in_grey():
    ordered = sorted(("F", "I", "B", "W"), key=lambda kind: luminance(PALETTE[kind]))
    assert ordered == ["F", "I", "B", "W"]
    assert all(contrast(PALETTE[a], PALETTE[b]) > 1.35 for a, b in itertools.pairwise(ordered))
    assert contrast(PALETTE["F"], PALETTE["B"]) > 2.5
    assert all(contrast(PALETTE[kind], PALETTE["idle"]) > 1.1 for kind in KINDS)


# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
# severity 1.0: red- and green-blindness, on linear RGB.
BLINDNESS = {
    "protan": [(0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)],
    "deutan": [(0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)],
}


def lab(color: str, blindness: str) -> np.ndarray:
    """CIE L*a*b* (D65) of a colour as a colour-blind reader sees it."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(BLINDNESS[blindness]) @ linear, 0, 1)
    to_xyz = [(0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505)]
    x, y, z = np.cbrt(np.maximum(np.array(to_xyz) @ seen / (0.9505, 1.0, 1.089), 1e-9))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_kinds_differ_for_colour_blind_readers(blindness):
    seen = {name: lab(PALETTE[name], blindness) for name in (*KINDS, "idle")}
    for a, b in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[a] - seen[b]) > 15, (a, b)  # about 2 can just be told apart


def test_forward_and_backward_stand_apart_where_letters_are_gone():
    """p=16, m=64 as a grey PNG: the two differ in tone, and in where they stand in the lane."""
    ax = plot_timeline(simulate(one_f_one_b(16, 64)))
    ax.figure.canvas.draw()
    grey = np.asarray(ax.figure.canvas.buffer_rgba())[..., :3] @ (0.299, 0.587, 0.114)

    def column(time: float) -> np.ndarray:
        """Rank 15's lane, top to bottom, at a time: it runs F0 B0 F1 B1 ... from 15 on."""
        lane = ax.get_yticks()[15]
        height = 2 * (ax.get_ylim()[0] - lane)
        (x, low), (_, high) = ax.transData.transform([(time, lane + 0.4 * height), (time, lane - 0.4 * height)])
        rows = grey.shape[0]
        return grey[rows - round(high) : rows - round(low), round(x)]

    forward, backward, idle = (np.median(column(time)) for time in (15.5, 16.5, 5.5))
    assert backward - forward > 60
    assert idle - backward > 25
    assert (
        abs(column(16.5)[2] - idle) < 8 < abs(column(15.5)[2] - idle)
    )  # a forward reaches the top, a backward does not


def test_shapes_tell_kinds_apart():
    assert SHAPE["F"][0] < SHAPE["B"][0] == SHAPE["I"][0] < SHAPE["W"][0]
    assert SHAPE["F"][1] < SHAPE["B"][1] == SHAPE["I"][1] == SHAPE["W"][1]
    ax = plot_timeline(golden("zbh1_p4_m8", "ZB-H1"))
    hatched = [c for c in ax.collections if isinstance(c, PolyCollection) and c.get_hatch()]
    assert sum(len(c.get_paths()) for c in hatched) == 4 * 8  # every W, and nothing else


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pale", [0.0, 0.5])
def test_text_on_a_box_is_readable(kind, pale):
    fill = mix(PALETTE[kind], pale)
    assert contrast(ink_on(fill), fill) > 4.5  # WCAG 2.2, level AA


# the picture and the page draw the same scene


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("critical_path", [False, True])
def test_matplotlib_draws_what_the_page_gets(name, critical_path):
    """Title, label, caption, key, texts in boxes and all colours, read back from matplotlib, against the scene's JSON."""
    t = simulate(SCHEDULES[name](p=4, m=4), Costs(0.5, backward=1))
    sent = json.loads(json.dumps(scene(1, tracks_of([[t]]))))
    (track,) = sent["tracks"]
    ax = plot_timeline(t, in_flight=True, critical_path=critical_path)
    assert ax.get_title(loc="left").replace("\n", "   ") == "   ".join(track["title"])
    assert ax.get_xlabel() == sent["label"]
    assert sent["caption"] in [text.get_text().replace("\n", " ") for text in ax.texts]

    (key,) = ax.findobj(AnchoredOffsetbox)
    shown = [entry for entry in sent["key"] if critical_path or entry[0] != "path"]
    assert [area.get_text() for area in key.findobj(TextArea)] == [word for _, word, _ in shown]
    swatches = [to_hex(one.get_facecolor()) for one in key.findobj(Rectangle) if one.get_fill() and not one.get_hatch()]
    assert swatches == [PALETTE[letter] for _, _, parts in shown for letter, _, _ in parts]

    path, boxes = set(track["path"]) if critical_path else set(range(len(track["kind"]))), {}
    for op, (kinds, label, shades) in enumerate(zip(track["kind"], track["name"], track["shade"], strict=True)):
        rank = sum(op >= first for first in track["first"][1:])
        middle = round((track["start"][op] + track["end"][op]) / 2, 4)
        colors = [track["colors"][0][shade][0 if op in path else 2 :][:2] for shade in shades]
        boxes[rank, middle] = list(zip(kinds, label.split("&"), colors, strict=True))
    fills = Counter(fill for found in boxes.values() for _, _, (fill, _) in found)
    drawn = [
        c for c in ax.collections if isinstance(c, PolyCollection) and c.get_zorder() == 2 and c.get_linewidth()[0]
    ]
    assert fills == Counter(to_hex(c.get_facecolor()[0]) for c in drawn for _ in c.get_paths())

    texts: dict[tuple[int, float], list[Text]] = {}
    for text in sorted(in_boxes(ax), key=lambda text: text.get_position()[1]):
        x, y = text.get_position()
        texts.setdefault((int(np.argmin(abs(ax.get_yticks() - y))), round(x, 4)), []).append(text)
    assert texts.keys() == boxes.keys()
    for place, found in texts.items():
        for text, (kind, label, (_, ink)) in zip(found, boxes[place], strict=True):
            assert text.get_text() in (label, label[label.index(kind) :], label[label.index(kind) + 1 :])
            assert to_hex(text.get_color()) == ink


# what the picture says


def test_title_and_caption_hold_the_figures():
    ax = plot_timeline(simulate(one_f_one_b(4, 8)))
    assert ax.get_title(loc="left") == "1F1B   makespan 22   bubble 27.3 %   in flight 4 3 2 1"
    assert "p = 4 ranks, m = 8 microbatches. Predicted, F=1 B=1." in said(ax)
    assert ax.get_xlabel() == "time (units of F)"
    assert ax.get_label() == repr(ax.figure) == "1F1B p=4 m=8: makespan 22, bubble 27.3 %, in flight 4 3 2 1"


def test_many_ranks_are_summed_up_in_the_title():
    assert "in flight 64 on every rank" in plot_timeline(simulate(gpipe(16, 64))).get_title(loc="left")
    assert "in flight at most 32" in plot_timeline(simulate(one_f_one_b(32, 32))).get_title(loc="left")


@pytest.mark.parametrize(
    ("costs", "label"),
    [
        (Costs(), "time (units of F)"),
        (Costs(forward=1, backward=2), "time (units of F)"),
        (Costs(forward=2, backward=2), "time (units)"),
        (Costs(forward=[1, 2, 1, 1], backward=2), "time (units)"),
        (Costs(forward=0.02, backward=0.02, unit="s"), "time (ms)"),
        (Costs(forward=0.2, backward=0.2, unit="s"), "time (ms)"),
        (Costs(forward=2, backward=2, unit="s"), "time (s)"),
        (Costs(forward=2000, backward=2000, unit="ms"), "time (s)"),
        (Costs(forward=1e-5, backward=1e-5, unit="s"), "time (µs)"),
        (Costs(unit="ticks"), "time (ticks)"),
    ],
)
def test_the_axis_names_its_unit(costs, label):
    assert plot_timeline(simulate(one_f_one_b(4, 8), costs)).get_xlabel() == label


def test_the_axis_has_whole_numbers_where_operations_end_at_such():
    ticks = plot_timeline(simulate(one_f_one_b(2, 1))).get_xticks()
    assert all(float(tick).is_integer() for tick in ticks)
    ticks = plot_timeline(simulate(one_f_one_b(2, 1), Costs(forward=0.5, backward=0.5))).get_xticks()
    assert not all(float(tick).is_integer() for tick in ticks)


def test_predicted_over_measured():
    prediction, run = seconds(), measured(seconds())
    ax = plot_timeline(prediction, run)
    title = ax.get_title(loc="left").replace("\n", "   ")
    more = 100 * (run.makespan / prediction.makespan - 1)
    assert f"makespan 440 ms predicted → {run.makespan * 1e3:.4g} ms measured ({more:+.1f} %)" in title
    assert f"bubble 27.3 % → {100 * run.bubble_fraction:.1f} %" in title
    assert "in flight 4 3 2 1" in title
    assert "Predicted, F=0.02 s B=0.02 s. Measured: 4 CPU processes" in said(ax).replace("\n", " ")
    assert [t.get_text() for t in ax.get_yticklabels(minor=True)] == ["predicted", "measured"] * 4
    assert ax.get_xlim()[1] == pytest.approx(
        run.makespan * 1e3, rel=0.01
    )  # both start at 0, though the run's clock did not
    lefts = [path.vertices[:, 0].min() for c in ax.collections if c.get_zorder() == 2 for path in c.get_paths()]
    assert min(lefts) == pytest.approx(0, abs=1)


def test_units_are_brought_together_or_refused():
    in_ms = simulate(one_f_one_b(4, 8), Costs(forward=20, backward=20, unit="ms"))
    assert "(+0.0 %)" in plot_timeline(in_ms, seconds()).get_title(loc="left")
    plt.close("all")
    with pytest.raises(ValueError, match=r"timelines in '' and 's' cannot share a time axis.*unit='s'"):
        plot_timeline(simulate(one_f_one_b(4, 8)), seconds())
    with pytest.raises(ValueError, match="cannot share a time axis"):
        plot_compare([simulate(gpipe(4, 8)), seconds()])
    assert plt.get_fignums() == []  # a refusal leaves no figure


def test_what_cannot_be_drawn_gets_a_sentence():
    with pytest.raises(ValueError, match=r"1F1B p=4 m=8 has 4, 1F1B p=2 m=8 has 2\. Use plot_compare"):
        plot_timeline(simulate(one_f_one_b(4, 8)), simulate(one_f_one_b(2, 8)))
    with pytest.raises(TypeError, match=r"simulate\(schedule\) returns one, and a run has run\.timeline"):
        plot_timeline(one_f_one_b(4, 8))
    with pytest.raises(ValueError, match="at least one timeline"):
        plot_compare([])
    with pytest.raises(ValueError, match="rank 4 is not there: the timelines have ranks 0 to 3"):
        plot_memory(simulate(gpipe(4, 8)), rank=4)
    with pytest.raises(ValueError, match="one for each of the 4 ranks"):
        plot_memory(simulate(gpipe(4, 8)), bytes_per_microbatch=[1e6, 2e6])
    assert plt.get_fignums() == []


def test_two_timelines_that_are_both_predicted_are_told_apart_by_name():
    ax = plot_timeline(simulate(gpipe(4, 8)), simulate(one_f_one_b(4, 8)))
    assert ax.get_title(loc="left").startswith("GPipe / 1F1B   makespan 22 GPipe → 22 1F1B (+0.0 %)")


def test_phases_are_marked_by_time():
    """1F1B, p=4, m=8: rank 3 starts at 3 and is done at 19."""
    ax = plot_timeline(simulate(one_f_one_b(4, 8)))
    names = {text.get_text(): text.get_position()[0] for text in ax.texts}
    assert names["warm-up"] == 1.5
    assert names["steady"] == 11
    assert names["cool-down"] == 20.5
    assert "warm-up" not in said(plot_timeline(simulate(one_f_one_b(4, 8)), phases=False))


def test_a_stopped_run_is_drawn_as_far_as_it_went():
    ax = plot_timeline(measured(seconds(), cut=21), in_flight=True)
    assert "stopped after 21 of 64 operations" in ax.get_title(loc="left")
    assert len(labels(ax)) == 21
    assert "cool-down" not in said(ax)
    empty = plot_timeline(measured(seconds(), cut=0))
    assert "stopped after 0 of 64 operations" in empty.get_title(loc="left")
    assert "no operation ran" in said(empty)


def test_a_rank_without_operations_is_an_empty_lane():
    schedule = Schedule("half", 1, (0,), (one_f_one_b(1, 1).orders[0], ()))
    spans = (Span(schedule.orders[0][0], 0, 0, 1), Span(schedule.orders[0][1], 0, 1, 2))
    ax = plot_timeline(Timeline(schedule, spans, "predicted, F=1 B=1"), in_flight=True, critical_path=True)
    assert labels(ax) == ["0F0", "0B0"]
    assert "peak 0" in said(ax)


def test_an_overlapped_pair_is_both_kinds_at_once():
    text = "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2"
    ax = plot_timeline(simulate(Schedule.from_csv(text, name="paired"), Costs(overlapped=2)))
    places = {t.get_text(): t.get_position() for t in ax.texts if t.get_position()[1] < ax.get_yticks()[0] + 17}
    (x, upper), (same, lower) = places["F2"], places["B0"]
    assert x == same
    assert upper < lower  # the axis points down


def test_the_critical_path_is_outlined():
    t = simulate(one_f_one_b(4, 8), Costs(forward=1, backward=2, transfer=1))

    def outlines(ax: Axes) -> int:
        return sum(len(c.get_paths()) for c in ax.collections if isinstance(c, PolyCollection) and c.get_zorder() == 4)

    assert outlines(plot_timeline(t)) == 0
    assert outlines(plot_timeline(t, critical_path=True)) == len(t.critical_path()) > 8
    run = measured(seconds())
    assert outlines(plot_timeline(seconds(), run, critical_path=True)) == len(run.critical_path())


def strip_heights(ax: Axes) -> list[float]:
    filled = [c for c in ax.collections if isinstance(c, PolyCollection) and len(c.get_facecolor())]
    (strips,) = (c for c in filled if to_hex(c.get_facecolor()[0]) == PALETTE["in flight"])
    return [float(np.ptp(path.vertices[:, 1])) for path in strips.get_paths()]


def test_in_flight_has_one_scale_across_schedules():
    ax = plot_compare([simulate(gpipe(4, 8)), simulate(one_f_one_b(4, 8))])
    heights = np.array(strip_heights(ax))
    assert heights / heights[0] * 8 == pytest.approx([8, 8, 8, 8, 4, 3, 2, 1])
    peaks = [text.get_text() for text in ax.texts if text.get_text().startswith("peak")]
    assert peaks == ["peak 8"] * 4 + ["peak 4", "peak 3", "peak 2", "peak 1"]


def test_compare_names_each_timeline():
    ax = plot_compare([simulate(gpipe(4, 8)), simulate(one_f_one_b(4, 8))])
    assert "GPipe   makespan 22   bubble 27.3 %   in flight 8 8 8 8" in said(ax)
    assert "1F1B   makespan 22   bubble 27.3 %   in flight 4 3 2 1" in said(ax)
    several = plot_compare([simulate(one_f_one_b(4, m)) for m in (8, 16)])
    assert "1F1B p=4 m=16   makespan 38" in said(several)
    kinds = plot_compare([seconds(), measured(seconds())])
    assert "1F1B, predicted   makespan 440 ms" in said(kinds)
    assert "1F1B, measured   makespan" in said(kinds)


def test_memory_shows_peaks_and_bytes():
    both = [simulate(gpipe(4, 32)), simulate(one_f_one_b(4, 32))]

    def heights(ax: Axes) -> list[list[float]]:
        bars = [c for c in ax.collections if isinstance(c, PolyCollection)]
        return [[float(path.vertices[:, 1].max()) for path in c.get_paths()] for c in bars]

    assert heights(plot_memory(both)) == [[32, 32, 32, 32], [4, 3, 2, 1]]
    ax = plot_memory(both, bytes_per_microbatch=[1e6, 2e6, 2e6, 3e6])
    assert heights(ax) == [[32, 64, 64, 96], [4, 6, 4, 3]]
    assert ax.get_ylabel() == "peak in flight (MB)"
    assert ax.get_title(loc="left") == "Peak in flight (MB)   GPipe 32 64 64 96   1F1B 4 6 4 3"
    over_time = plot_memory(both, rank=0)
    assert [max(line.get_ydata()) for line in over_time.lines] == [32, 4]
    assert over_time.get_title(loc="left") == "Rank 0, peak in flight   GPipe 32   1F1B 4"
    stages = plot_memory(golden("interleaved_p4_m8_v2", "interleaved", backward=2))
    assert stages.get_ylabel() == "peak in flight (microbatches on one stage)"
    assert heights(stages) == [[11, 9, 7, 5]]  # min(mv, 2(p-i-1)+(v-1)p+1), Narayanan et al., SC'21


# nothing left behind


def test_settings_and_figures_are_left_alone():
    plt.figure()
    before, interactive = dict(mpl.rcParams), mpl.is_interactive()
    _, ax = plt.subplots()
    count = len(plt.get_fignums())
    plot_timeline(simulate(gpipe(2, 2)), in_flight=True, critical_path=True, ax=ax)
    assert len(plt.get_fignums()) == count
    own = [plot_timeline(simulate(gpipe(2, 2))), plot_compare([simulate(gpipe(2, 2))]), plot_memory(seconds())]
    assert all(isinstance(each, Axes) for each in own)
    assert len(plt.get_fignums()) == count + 3
    assert dict(mpl.rcParams) == before
    assert mpl.is_interactive() == interactive


@pytest.mark.slow
def test_the_first_picture_leaves_a_notebook_interactive(fresh_python, tmp_path):
    """A notebook's backend switches matplotlib to interactive as it loads, with the first figure; a stand-in for it."""
    (tmp_path / "standin.py").write_text(
        "import matplotlib\nfrom matplotlib.backends.backend_agg import *\nmatplotlib.interactive(True)\n"
    )
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import matplotlib
from ppedu import gpipe, plot_memory, plot_timeline, simulate
print(matplotlib.is_interactive())
plot_timeline(simulate(gpipe(2, 2)))
print(matplotlib.is_interactive())
"""
    assert fresh_python(code, env={"MPLBACKEND": "module://standin"}).split() == ["False", "True"]


def test_pictures_do_not_depend_on_the_readers_style():
    def picture() -> bytes:
        file = io.BytesIO()
        ax = plot_timeline(simulate(one_f_one_b(2, 2)), in_flight=True)
        ax.figure.savefig(file, format="raw", facecolor="white", dpi=72)
        return file.getvalue()

    plain = picture()
    with plt.style.context(["dark_background", {"axes.grid": True, "font.family": "serif", "figure.autolayout": True}]):
        assert picture() == plain


@pytest.mark.timing
@pytest.mark.parametrize(("p", "m", "limit"), [(4, 8, 0.6), (8, 32, 1.0), (16, 64, 1.5)])
def test_a_picture_takes_less_than_a_second(p, m, limit):
    """512 boxes at p=8, m=32. Best of three, PNG included."""
    t = simulate(one_f_one_b(p, m))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        ax = plot_timeline(t, in_flight=True)
        ax.figure.savefig(io.BytesIO(), format="png")
        times.append(time.perf_counter() - start)
        plt.close(ax.figure)
    assert min(times) < limit


def test_schedules_with_other_stages_count_alike():
    """Half a stage keeps half: ZB-V's eight stage-microbatches are four microbatches on a quarter of the model."""
    halves = simulate(zb_v(p=4, m=8), Costs(0.5, input_grad=0.5, weight_grad=0.5))
    whole = simulate(one_f_one_b(p=4, m=8), Costs(1, backward=2))
    both = plot_compare([whole, halves])
    texts = [text.get_text() for text in both.texts]
    heads = [text.partition("in flight ")[2] for text in texts if "makespan" in text]
    assert heads == ["4 3 2 1", "8 8 8 8   activations 4 4 4 4"]
    assert texts.count("peak 4") == 5
    assert "In flight: microbatches on one stage; activations: on 1/p" in " ".join(texts).replace("\n", " ")
    memory = plot_memory([whole, halves])
    assert memory.get_title(loc="left") == "Peak activations   1F1B 4 3 2 1   ZB-V 4 4 4 4"
    assert memory.get_ylabel() == "peak activations (microbatches on 1/p of the model)"
    alone = plot_timeline(halves, in_flight=True)
    assert alone.get_title(loc="left").endswith("in flight 8 8 8 8   activations 4 4 4 4")
    assert [text.get_text() for text in alone.texts].count("peak 8") == 4, "alone: in its own stages"
