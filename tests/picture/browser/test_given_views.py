"""explore() of an order of one's own, of a run and of a timeline, in a real JupyterLab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from browser.real_lab import Lab, LiveView, browser, chromium, python, run_all

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELLS = (
    "import ppedu\nfrom ppedu.course.job import train_course\n"
    "mine = ppedu.Schedule.from_text('F0 F1 F2 B0 F3 B1 B2 B3\\nF0 B0 F1 B1 F2 B2 F3 B3', name='mine')\n"
    "pace = ppedu.Costs(0.02, 0.04, unit='s')\n"
    "run = train_course(mine, pace, samples=8, steps=1, blocks=2, width=16, device='cpu', progress=False)",
    "own = ppedu.explore(mine, ratio=2, train=train_course); own",
    "ran = ppedu.explore(run); ran",
    "there = ppedu.explore(ppedu.simulate(ppedu.zb_h1(4, 8))); there",
    "both = ppedu.explore_compare(['1f1b', mine], ratio=2); both",
)


@pytest.fixture(scope="module")
def page(lab: Lab) -> Iterator[Any]:
    """The page with the four views, and what it complained of."""
    with browser(chromium() or "") as one:
        page = one.new_page(viewport={"width": 1280, "height": 720})
        page.complaints = []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        run_all(page, lab.write("given.ipynb", CELLS))
        page.wait_for_function("document.querySelectorAll('.ppedu[data-drawn]').length === 4", timeout=90_000)
        yield page


def gap(rank: int) -> str:
    return f"track => ({{rank: {rank}, gap: track.gaps.findIndex(([r]) => r === {rank})}})"


def op(rank: int, name: str) -> str:
    return f"track => ({{rank: {rank}, op: track.name.indexOf('{name}', track.first[{rank}])}})"


def figure(view: LiveView, key: str) -> str:
    return str(view[f"tr[data-key='{key}'] td"].inner_text())


def titles(view: LiveView) -> Any:
    return view.scene("scene => scene.tracks.map(track => track.title)")


def test_an_order_of_ones_own(page):
    """Its p and m stand still, its costs move, and each bubble has its reason."""
    own = LiveView(page, 1).settled()
    assert titles(own) == [["mine", "makespan 15", "bubble 20.0 %", "in flight 3 1"]]
    assert own["select"].first.input_value() == '"mine (as given)"'
    assert own["select"].first.locator("option").first.inner_text() == "mine (as given)"
    for label in ("ranks p", "microbatches m"):
        assert own.root.get_by_label(label, exact=True).is_disabled()
    assert figure(own, "makespan").split() == ["15", "simulated"]
    own.point(gap(0))
    assert "it waits for rank 1's B0, which ended at 4" in own.tip()
    own.root.get_by_label("B takes × F", exact=True).fill("3")
    own.settled()
    assert figure(own, "makespan").startswith("20")
    own["select"].first.select_option(label="GPipe")
    own.settled()
    assert titles(own)[0][0] == "GPipe"
    assert own.root.get_by_label("ranks p", exact=True).is_enabled()
    own["select"].first.select_option(label="mine (as given)")
    own.settled()
    assert python(page, "print(own.p, own.m, own.settings.built() is mine)") == "2 4 True\n"


def test_an_order_of_ones_own_runs_for_real(page):
    own = LiveView(page, 1).settled()
    python(page, "own.ratio = 2")
    own.settled()
    own.button("Run for real").click()
    own.until("root => ['done', 'failed'].includes(root.querySelector('.ppedu-run').dataset.state)", seconds=60)
    assert own[".ppedu-run"].get_attribute("data-state") == "done", own[".ppedu-run"].inner_text()
    own.until("root => root.view.scene.tracks.length === 2 && +root.dataset.drawn === root.view.scene.number")
    names = own.scene("scene => scene.tracks.map(track => track.name.join(' '))")
    assert names == ["F0 F1 F2 B0 F3 B1 B2 B3 F0 B0 F1 B1 F2 B2 F3 B3"] * 2


def test_a_run_lies_over_its_prediction_and_has_no_controls(page):
    ran = LiveView(page, 2).settled()
    ((name, makespan, *_), nothing) = titles(ran)
    assert (name, nothing) == ("mine", [])
    assert makespan.startswith("makespan 300 ms predicted → ")  # 15 units of 20 ms
    assert "Measured: 2 CPU processes" in ran[".ppedu-caption"].inner_text()
    assert "predicted 300 ms" in figure(ran, "makespan")
    for missing in ("select:not([aria-label])", ".ppedu-controls", ".ppedu-run", "input.ppedu-number"):
        assert ran[missing].count() == 0
    assert ran[".ppedu-moved"].is_hidden()
    ran.point(op(1, "B0"))
    assert "(there at 40 ms)" in ran.tip(), "a prediction knows"
    ran.root.get_by_label("predicted", exact=True).uncheck()
    ran.settled()
    assert [len(one) > 0 for one in titles(ran)] == [True]
    ran.point(op(1, "B0"))
    assert "its own F0 (ended at " in ran.tip(), "a measurement knows when operations ended"
    ran.button("▶ Play").click()
    ran.until("root => root.dataset.time > 0")
    ran.button("Show all").click()
    ran.root.get_by_label("predicted", exact=True).check()
    ran.settled()


def test_a_timeline_is_shown_as_it_is(page):
    there = LiveView(page, 3).settled()
    assert titles(there) == [["ZB-H1", "makespan 19", "bubble 15.8 %", "in flight 4 4 4 4"]]
    assert there[".ppedu-caption"].inner_text() == ("p = 4 ranks, m = 8 microbatches. Predicted, F=1 B=1.")
    assert there.root.get_by_label("predicted", exact=True).is_hidden()
    assert figure(there, "bubble").split() == ["15.8", "%", "predicted"]


def test_an_order_is_compared_with_a_named_one(page):
    """Beside the order p and m stand still; without it they move."""
    both = LiveView(page, 4).settled()
    assert [one[:2] for one in titles(both)] == [["1F1B", "makespan 15"], ["mine", "makespan 15"]]
    assert both.root.get_by_label("ranks p", exact=True).is_disabled()
    for name in ("GPipe", "mine (as given)"):
        both.root.get_by_label(name, exact=True).click()
        both.settled()
    assert [one[0] for one in titles(both)] == ["1F1B", "GPipe"]
    both.root.get_by_label("ranks p", exact=True).fill("3")
    both.settled()
    assert both.scene("scene => scene.tracks.map(track => track.ranks)") == [3, 3]
    assert both.root.get_by_label("GPipe", exact=True).is_disabled(), "two have to stay"


def test_what_has_nothing_to_train_says_how_to_run_it(page):
    both = LiveView(page, 4).settled()
    assert both.button("Run all for real").is_disabled()
    assert "add train=train_course" in both[".ppedu-run"].inner_text()


@pytest.mark.parametrize("width", [1280, 640])
def test_nothing_runs_out_of_its_column(page, width):
    page.set_viewport_size({"width": width, "height": 720})
    for cell in (1, 2, 3, 4):
        view = LiveView(page, cell)
        assert view.out_of_column() == []


def test_the_page_had_nothing_to_complain_of(page):
    assert page.complaints == []
