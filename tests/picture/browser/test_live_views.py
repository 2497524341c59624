"""The live views in a real JupyterLab: what a learner does with mouse and keys, and what he then sees."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest
from leftovers import children

from browser.real_lab import LiveView, python, set_theme, wait_for
from ppedu import one_f_one_b

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _as_at_first(page):
    """Each test finds the views as the notebook made them."""
    python(
        page,
        "one.schedule, two.schedules, two.budget = '1f1b', ['gpipe', '1f1b'], None\n"
        "for view in (one, two):\n"
        "    view.p, view.m, view.ratio, view.transfer, view.slow_stage, view.overlay = 4, 8, 1, 0, None, False\n"
        "    view.v, view.w_share, view.overlap = 2, 0.5, 1\n"
        "for level in (1, 2, 4, 5, 8, 10): built.level = level; built.restart(); built.hints = 0\n"
        "built.level, built.legal = 1, False",
    )


def op(rank: int, name: str) -> str:
    return f"track => ({{rank: {rank}, op: track.name.indexOf('{name}', track.first[{rank}])}})"


def gap(rank: int, start: float) -> str:
    return f"track => ({{rank: {rank}, gap: track.gaps.findIndex(([r, from]) => r === {rank} && from === {start})}})"


def value_of(view: LiveView, what: str) -> str:
    """A figure of the explorer, as it stands beside the picture."""
    return view[f"tr[data-key='{what}'] b"].inner_text()


# explore()


def test_sliders_move_the_picture_and_its_figures(explore):
    slider = explore.root.get_by_label("microbatches m", exact=True)
    before, pixels = explore.drawn, explore.pixels()
    assert value_of(explore, "makespan") == "22"
    slider.focus()
    explore.page.keyboard.press("ArrowRight")
    explore.settled()
    assert explore.drawn > before
    assert explore.pixels() != pixels
    assert value_of(explore, "makespan") == "24"  # (9 + 4 - 1)(1 + 1)
    assert explore.scene("scene => scene.tracks[0].makespan") == 24
    assert "microbatches m" not in explore[".ppedu-error"].inner_text()
    explore.root.get_by_label("ranks p", exact=True).fill("2")
    explore.settled()
    assert explore.scene("scene => [scene.tracks[0].ranks, scene.tracks[0].makespan]") == [2, 20]
    assert python(explore.page, "print(one.p, one.m)") == "2 9\n"


def test_hovering_an_operation_says_what_it_needs_and_unblocks(explore):
    explore.point(op(0, "B0"))
    assert explore.tip().splitlines() == [
        "B0: backward of microbatch 0 on rank 0",
        "runs from 7 to 8",
        "needs its own F0 (there at 1) and rank 1's B0 (there at 7)",
        "unblocks nothing: no other operation needs it",
    ]
    explore.point(op(2, "F3"))
    assert "unblocks its own B3 and rank 3's F3" in explore.tip()


def test_hovering_a_bubble_says_why_it_is_there(explore):
    explore.point(gap(0, 4))
    assert explore.tip().splitlines() == [
        "bubble on rank 0, 3 long",
        "rank 0 is idle from 4 to 7: it waits for rank 1's B0, which ended at 7",
    ]
    explore.page.mouse.move(1, 1)
    explore[".ppedu-tip"].wait_for(state="hidden")


def test_play_ends_at_the_makespan(explore):
    explore.root.get_by_label("speed", exact=True).select_option("4")
    explore.root.evaluate(
        """root => {
            root.latest = 0;
            const seen = new MutationObserver(() => root.latest = Math.max(root.latest, +root.dataset.time));
            seen.observe(root, {attributes: true, attributeFilter: ["data-time"]});
        }"""
    )
    explore.button("▶ Play").click()
    explore.until("root => root.dataset.time > 0 && root.dataset.time < 22")
    explore.until("root => root.dataset.time === '22' && !root.view.playing")
    assert explore.root.evaluate("root => root.latest") == 22, "and not beyond"
    assert explore[".ppedu-now"].inner_text() == "22 of 22"
    explore.button("▶ Play").wait_for()
    explore.button("Show all").click()
    explore.until("root => root.dataset.time === ''")


def test_the_picture_by_keys(explore):
    canvas = explore["canvas[tabindex='0']"]
    canvas.focus()
    said = explore[".ppedu-live"]
    page = explore.page
    page.keyboard.press("Home")
    explore.until(
        "root => root.querySelector('.ppedu-live').textContent.startsWith('F0: forward of microbatch 0 on rank 0')"
    )
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert said.text_content().startswith("bubble on rank 0, 3 long")
    page.keyboard.press("ArrowDown")
    assert "on rank 1" in said.text_content()
    page.keyboard.press("Escape")
    page.keyboard.press(".")
    page.keyboard.press(".")
    explore.until("root => root.dataset.time === '1'")
    page.keyboard.press("Escape")
    explore.until("root => root.dataset.time === ''")
    assert page.evaluate("document.querySelectorAll('.jp-Notebook-cell').length") == 5, (
        "b and the like are not JupyterLab's here"
    )


def test_a_wrong_value_shows_its_error(explore):
    before = explore.scene("scene => scene.number")
    box = explore.root.get_by_label("microbatches m, as a number")
    box.fill("999")
    box.press("Enter")
    error = explore[".ppedu-error"]
    explore.until("root => root.querySelector('.ppedu-error').textContent")
    assert error.inner_text() == "m is the number of microbatches, a whole number from 1 to 64: got 999"
    assert box.get_attribute("aria-invalid") == "true"
    assert explore.scene("scene => scene.number") == before
    box.fill("10")
    box.press("Enter")
    explore.until("root => !root.querySelector('.ppedu-error').textContent")
    assert value_of(explore, "makespan") == "26"


def test_what_makes_no_sense_together_cannot_be_chosen(explore):
    explore.root.get_by_label("slow stage", exact=True).select_option("3")
    explore.settled()
    slider = explore.root.get_by_label("ranks p", exact=True)
    slider.fill("2")
    explore.settled()
    assert python(explore.page, "print(one.slow_stage)") == "1\n"
    assert explore[".ppedu-error"].inner_text() == ""


def control(view: LiveView, label: str):
    return view.root.get_by_label(label, exact=True)


def choose_schedule(view: LiveView, text: str) -> None:
    control(view, "schedule").select_option(label=text)
    view.settled()


def test_stages_on_a_rank_have_a_control_where_the_schedule_has_them(explore):
    assert control(explore, "stages a rank v").is_hidden()
    choose_schedule(explore, "interleaved 1F1B")
    assert control(explore, "stages a rank v").is_visible()
    assert explore.scene("scene => [scene.tracks[0].makespan, scene.tracks[0].name.length]") == [19, 128]
    pixels = explore.pixels()
    control(explore, "stages a rank v").fill("4")
    explore.settled()
    assert explore.scene("scene => [scene.tracks[0].makespan, scene.tracks[0].name.length]") == [17.5, 256]
    assert explore.pixels() != pixels
    assert value_of(explore, "makespan") == "17.5"  # (m v + p - 1)(F + B) / v
    explore.point(op(0, "4F0"))
    title, _runs, needs, unblocks = explore.tip().splitlines()
    assert title == "4F0: forward of microbatch 0 on stage 4, rank 0"
    assert needs == "needs rank 3's 3F0 (there at 1)"
    assert unblocks == "unblocks its own 4B0 and rank 1's 5F0"
    choose_schedule(explore, "GPipe")
    assert control(explore, "stages a rank v").is_hidden()


def test_a_choice_is_a_move_of_its_own(explore):
    choose_schedule(explore, "interleaved 1F1B")
    box = control(explore, "stages a rank v, as a number")
    box.fill("3")
    box.press("Enter")
    explore.settled()
    assert explore[".ppedu-moved"].inner_text() == "Last move: stages a rank v 2 → 3"
    shown = explore.root.get_by_label("schedule", exact=True).evaluate(
        """select => {
            const text = new OffscreenCanvas(1, 1).getContext("2d"), style = getComputedStyle(select);
            text.font = `${style.fontSize} ${style.fontFamily}`;
            return select.clientWidth - text.measureText(select.selectedOptions[0].text).width;
        }"""
    )
    assert shown >= 28, "the name has room beside the arrow"


def test_a_slow_rank_is_called_one_where_it_holds_several_stages(explore):
    assert control(explore, "slow stage").is_visible()
    choose_schedule(explore, "ZB-V")
    control(explore, "slow rank").select_option(label="rank 1")
    explore.settled()
    assert "rank 1 takes 2 times as long" in explore[".ppedu-caption"].inner_text()


def test_w_s_share_moves_the_picture_and_i_frees_nothing(explore):
    assert control(explore, "W's share of B").is_hidden()
    choose_schedule(explore, "ZB-H1")
    python(explore.page, "one.ratio = 2")
    explore.settled()
    assert value_of(explore, "makespan") == "27"  # Zero Bubble, table 2: m (F + B) + (p - 1)(F + I - W)
    control(explore, "W's share of B").fill("0.25")
    explore.settled()
    assert value_of(explore, "makespan") == "30"
    explore.point(op(3, "I0"))
    assert "frees nothing: its activations are kept until its W has run" in explore.tip()
    explore.point(op(3, "W0"))
    assert "frees the activations when it ends" in explore.tip()


def test_an_odd_p_cannot_be_chosen_for_dualpipe(explore):
    python(explore.page, "one.p = 3")
    explore.settled()
    choose_schedule(explore, "DualPipe")
    slider = control(explore, "ranks p")
    assert [slider.get_attribute(name) for name in ("min", "step", "max")] == ["2", "2", "16"]
    assert slider.input_value() == "4"
    slider.focus()
    explore.page.keyboard.press("ArrowRight")
    explore.settled()
    assert explore.scene("scene => scene.tracks[0].ranks") == 6
    box = control(explore, "ranks p, as a number")
    box.fill("5")
    box.press("Enter")
    explore.until("root => root.querySelector('.ppedu-error').textContent")
    assert explore[".ppedu-error"].inner_text().startswith("p cannot be 5: DualPipe pairs rank r with rank p - 1 - r")
    assert box.get_attribute("aria-invalid") == "true"
    assert explore.scene("scene => scene.tracks[0].ranks") == 6
    box.fill("8")
    box.press("Enter")
    explore.until("root => !root.querySelector('.ppedu-error').textContent")
    assert explore.scene("scene => scene.tracks[0].ranks") == 8
    assert "2 copies" in explore["tr[data-key='weights']"].inner_text()
    assert control(explore, "F&B × (F + B)").is_visible()
    choose_schedule(explore, "1F1B")
    assert [slider.get_attribute(name) for name in ("min", "step")] == ["1", "1"]


# explore_compare()


def test_same_time_and_other_memory_side_by_side(compare):
    text = compare[".ppedu-verdict"].inner_text()
    assert "The same makespan, 22" in text
    assert "8 microbatches with GPipe, 4 with 1F1B" in text
    assert compare.scene("scene => scene.tracks.map(track => [track.makespan, track.peaks])") == [
        [22, [8, 8, 8, 8]], [22, [4, 3, 2, 1]],
    ]  # fmt: skip
    before = compare.drawn
    compare.root.get_by_label("set a memory budget").check()
    compare.until("(root, before) => +root.dataset.drawn > before", before)
    assert "over the budget" in compare[".ppedu-comparison"].inner_text()


def test_stages_of_different_size_are_compared_in_one_unit(compare):
    for name in ("interleaved 1F1B", "GPipe"):
        compare.root.get_by_label(name, exact=True).click()
        compare.settled()
    assert compare.scene("scene => scene.tracks.map(track => track.peaks)") == [[4, 3, 2, 1], [5.5, 4.5, 3.5, 2.5]]
    assert "5.5 (11 in flight, each 1/2)" in compare[".ppedu-comparison"].inner_text()
    assert control(compare, "stages a rank v").is_visible()


# puzzle()


def cell(view: LiveView, rank: int, name: str):
    return view[f"button[data-op='{name}'][data-rank='{rank}']"]


def keys(view: LiveView, *pressed: str) -> None:
    for key in pressed:
        view.page.keyboard.press(key)
        view.settled()


def choose_level(view: LiveView, number: int) -> None:
    view.root.get_by_label("level", exact=True).select_option(str(number))
    view.settled()


def test_1f1b_is_built_by_keys_and_recognised(puzzle):
    """Level 4: p=3, m=4. Rank by rank, each operation by its letter; what is next of a kind is chosen by itself."""
    choose_level(puzzle, 4)
    cell(puzzle, 0, "F0").focus()
    for rank, order in enumerate(one_f_one_b(3, 4).orders):
        for action in order:
            keys(puzzle, action.kind.value, "Enter")
        if rank < 2:
            keys(puzzle, "ArrowDown")
    assert puzzle[".ppedu-answer"].inner_text().startswith("★ Solved. This is 1F1B.")
    assert puzzle.scene("scene => scene.tracks[0].makespan") == 12
    assert [row.get_attribute("data-kept") for row in puzzle["tr[data-kept]"].all()] == ["kept"] * 3
    puzzle.button("Next level").click()
    puzzle.settled()
    assert puzzle.root.get_by_label("level", exact=True).input_value() == "5"


def test_zero_bubble_by_keys(puzzle):
    """Level 10: p=2, m=2, F=I=W=1. ZB-H1 ends at 7 (Zero Bubble, table 2), and so does ZB-H2, which is the same here."""
    choose_level(puzzle, 10)
    cell(puzzle, 0, "F0").focus()
    assert "Keys: arrows, F, I or W, Enter" in puzzle[".ppedu-answer"].inner_text()
    keys(puzzle, *(key for letter in "FFIWIW" for key in (letter, "Enter")), "ArrowDown")
    keys(puzzle, *(key for letter in "FIFIW" for key in (letter, "Enter")))
    assert puzzle.root.get_attribute("data-placed") == "11"
    assert cell(puzzle, 1, "W0").get_attribute("data-state") == "placed"
    keys(puzzle, "W", "Enter")
    assert puzzle[".ppedu-answer"].inner_text().startswith("★ Solved. This is ZB-H1 and ZB-H2")
    assert puzzle.scene("scene => scene.tracks[0].makespan") == 7


def test_two_stages_on_a_rank_by_keys_and_by_clicks(puzzle):
    """Level 8: interleaved 1F1B, p=2, m=2, v=2. A letter pressed again goes to the rank's other stage."""
    choose_level(puzzle, 8)
    cell(puzzle, 0, "0F0").focus()
    keys(puzzle, "F", "F", "Enter")  # 2F0 before 0F0
    assert "rank 0 waits at 2F0 for rank 1's 1F0" in puzzle[".ppedu-answer"].inner_text()
    keys(puzzle, "F", "0", "Enter", "F", "Enter", "F", "Enter", "F", "Enter")
    assert puzzle["textarea"].input_value().splitlines()[0] == "0F0,0F1,2F0,2F1"
    keys(puzzle, "B", "B", "Enter", "B", "1", "Enter", "B", "Enter", "B", "Enter")
    assert puzzle["textarea"].input_value().splitlines()[0] == "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1"
    for name in ("1F0", "1F1", "3F0", "3B0", "3F1", "3B1", "1B0", "1B1"):
        cell(puzzle, 1, name).click()
        puzzle.settled()
    assert puzzle[".ppedu-answer"].inner_text().startswith("★ Solved. This is interleaved 1F1B.")
    assert puzzle.scene("scene => scene.tracks[0].makespan") == 10


def test_an_illegal_move_is_refused_with_its_reason(puzzle):
    cell(puzzle, 1, "B0").click()
    puzzle.settled()
    answer = puzzle[".ppedu-answer"]
    assert answer.get_attribute("data-kind") == "refused"
    assert answer.inner_text().strip() == (
        "✗ B0 on rank 1 cannot come next: rank 1 runs B0 before F0, whose result it needs: run F0 first."
    )
    assert puzzle.root.get_attribute("data-placed") == "0"
    cell(puzzle, 1, "F0").click()
    puzzle.settled()
    assert "has to wait: rank 1's F0 waits for rank 0's F0" in answer.inner_text()


def test_legal_moves_hints_and_undo(puzzle):
    cell(puzzle, 0, "F0").focus()
    keys(puzzle, "l")
    assert cell(puzzle, 0, "F0").get_attribute("data-state") == "legal"
    assert cell(puzzle, 0, "B0").get_attribute("data-state") == "illegal"
    keys(puzzle, "Enter")
    assert puzzle.root.get_attribute("data-placed") == "1"
    keys(puzzle, "u")
    assert puzzle.root.get_attribute("data-placed") == "0"
    keys(puzzle, "r", "ArrowDown", "ArrowLeft", "F", "Enter")
    assert puzzle.root.get_attribute("data-placed") == "2"
    puzzle.button("Hint (3)").click()
    puzzle.settled()
    assert puzzle[".ppedu-hints li"].all_inner_texts() == ["Each rank runs two operations: F0, and later B0."]


def test_the_same_view_shown_twice_stays_the_same(puzzle):
    """Answers are counted so that neither of the two waits for one that the other has had."""
    again = LiveView(puzzle.page, 4).settled()
    for view, other, rank, name in (
        (puzzle, again, 0, "F0"),
        (again, puzzle, 1, "F0"),
        (again, puzzle, 1, "B0"),
        (puzzle, again, 0, "B0"),
    ):
        cell(view, rank, name).click()
        view.settled()
        other.until("(root, placed) => root.dataset.placed === placed", view.root.get_attribute("data-placed"))
    assert "Solved" in again[".ppedu-answer"].inner_text()
    assert "Solved" in puzzle[".ppedu-answer"].inner_text()


def test_a_position_is_saved_and_loaded_as_text(puzzle):
    choose_level(puzzle, 5)
    box = puzzle["textarea"]
    puzzle["summary"].click()
    box.fill("0F0,0B0\n1F1,1B1")
    puzzle.button("Load").click()
    puzzle.settled()
    assert "rank 0 waits at B0 for rank 1's B0, which waits behind F1" in puzzle[".ppedu-error"].inner_text()
    assert box.input_value() == "0F0,0B0\n1F1,1B1", "it can be mended"
    box.fill(one_f_one_b(4, 8).to_csv())
    puzzle.button("Load").click()
    puzzle.settled()
    assert "This is 1F1B." in puzzle[".ppedu-answer"].inner_text()
    assert puzzle[".ppedu-error"].inner_text() == ""
    assert box.input_value() == one_f_one_b(4, 8).to_csv()
    puzzle["summary"].click()


# the real run


def state_of(view: LiveView) -> str:
    return view[".ppedu-run"].get_attribute("data-state")


def kernel(page) -> int:
    return int(python(page, "import os; print(os.getpid())"))


def test_what_was_built_runs_for_real(puzzle):
    assert puzzle.button("Run for real").is_disabled()
    cell(puzzle, 0, "F0").focus()
    keys(puzzle, "F", "Enter", "B", "Enter", "ArrowDown", "F", "Enter", "B", "Enter")
    puzzle.button("Run for real").click()
    puzzle.until("root => root.querySelector('.ppedu-run').dataset.state === 'running'", seconds=60)
    assert python(puzzle.page, "print(1 + 1)") == "2\n", "the kernel is free meanwhile"
    puzzle.until("root => ['done', 'failed'].includes(root.querySelector('.ppedu-run').dataset.state)", seconds=60)
    assert state_of(puzzle) == "done", puzzle[".ppedu-run"].inner_text()
    puzzle.until("root => root.view.scene.tracks.length === 2 && +root.dataset.drawn === root.view.scene.number")
    predicted, measured = puzzle.scene("scene => scene.tracks.map(track => [track.word, track.makespan])")
    assert predicted == ["predicted", 80]  # 4 units of 20 ms
    assert measured[0] == "measured"
    assert measured[1] > 0.99 * predicted[1]
    assert "Measured: 2 " in puzzle[".ppedu-caption"].inner_text()
    assert [p.pid for p in children(kernel(puzzle.page))] == []


def test_zero_bubble_runs_for_real(explore):
    """I and W are operations of their own, in the run as in the picture."""
    python(explore.page, "one.schedule, one.p, one.m, one.ratio, one.overlay = 'zb_h1', 2, 4, 2, True")
    explore.settled()
    explore.button("Run for real").click()
    explore.until("root => ['done', 'failed'].includes(root.querySelector('.ppedu-run').dataset.state)", seconds=60)
    assert state_of(explore) == "done", explore[".ppedu-run"].inner_text()
    explore.until("root => root.view.scene.tracks.length === 2 && +root.dataset.drawn === root.view.scene.number")
    predicted, measured = explore.scene(
        "scene => scene.tracks.map(track => [track.word, [...track.kind].sort().join(''), track.peaks, track.makespan])"
    )
    assert predicted[1] == measured[1] == "FFFFFFFFIIIIIIIIWWWWWWWW"
    assert predicted[2] == measured[2] == [2, 2]  # at most p (Zero Bubble, table 2)
    assert (measured[0], predicted[3]) == ("measured", 260)  # 4 x 3 + 1 units of 20 ms
    assert measured[3] > 0.99 * predicted[3]


def test_more_stages_than_blocks_do_not_run_and_it_is_said(explore):
    python(explore.page, "one.schedule, one.p, one.v = 'interleaved', 8, 4")
    explore.settled()
    explore.button("Run for real").click()
    explore.until("root => root.querySelector('.ppedu-run').dataset.state === 'failed'")
    assert "has 32 stages, but the course's model has 24 blocks" in explore[".ppedu-run"].inner_text()


def test_stop_leaves_no_process(explore):
    python(explore.page, "one.p, one.m, one.ratio = 2, 64, 4")
    explore.settled()
    pid = kernel(explore.page)
    explore.button("Run for real").click()
    wait_for("no rank was started", lambda: len(children(pid)) >= 2, 60)
    ranks = children(pid)
    explore.button("Stop").click()
    explore.until("root => root.querySelector('.ppedu-run').dataset.state === 'stopped'", seconds=15)
    assert explore[".ppedu-run"].inner_text().split() == [
        "Run",
        "for",
        "real",
        "Stopped.",
        "No",
        "process",
        "is",
        "left.",
    ]
    assert psutil.wait_procs(ranks, timeout=1)[1] == []
    assert children(pid) == []


# how it looks


def test_the_dark_theme_is_followed(explore, compare, puzzle):
    views = (explore, compare, puzzle)
    corner = "root => [...root.view.below.getContext('2d').getImageData(3, root.view.lay.lanes[0].top * devicePixelRatio + 3, 1, 1).data]"
    light = [view.pixels() for view in views]
    set_theme(explore.page, "JupyterLab Dark")
    for view, before in zip(views, light, strict=True):
        view.until("root => root.classList.contains('ppedu-dark') || root.querySelector('.ppedu-dark')")
        view.until("(root, before) => root.view.below.toDataURL() !== before", before)
        ink, paper = view.root.evaluate("root => [root.view.colors.ink, root.view.colors.paper]")
        assert int(paper[1:3], 16) < 64 < 192 < int(ink[1:3], 16)
        assert view.root.evaluate(corner)[3] == 0, "the ground is the page's own"


@pytest.mark.parametrize("width", [1280, 640])
def test_nothing_runs_out_of_its_column(page, width):
    python(page, "built.level = 9; one.schedule, two.schedules = 'dualpipe', ['1f1b', 'interleaved', 'dualpipev']")
    page.set_viewport_size({"width": width, "height": 720})
    for number in (1, 2, 3):
        view = LiveView(page, number)
        assert view.out_of_column() == []


def test_the_page_had_nothing_to_complain_of(page, complaints):
    assert complaints == []


# and when there is no browser


def test_without_chromium_these_tests_are_skipped_with_what_installs_it(root, tmp_path):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rs",
        "-p",
        "no:cacheprovider",
        f"{__file__}::test_play_ends_at_the_makespan",
    ]
    nowhere = {"PATH": str(tmp_path), "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=root, env={**os.environ, **nowhere}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert (
        "there is no Chromium: `apt-get install chromium` (Debian), or `python -m playwright install chromium`"
        in done.stdout
    )
