"""What a real run measures: the textbook's figures, in processes on this machine.

Times are those of the quickest step: whatever else the machine does can only make a step longer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from orders import golden
from runtime_helpers import batch, layers, momentum, mse
from torch import nn

import ppedu
from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.core.timeline import Timeline
from ppedu.course.models import ByteGPT, next_byte_loss
from ppedu.runtime.run import Run

P, M = 4, 8


def train(schedule: Schedule, steps: int = 2, pace: Costs | None = None, model=None, samples: int = 0, **rest) -> Run:
    model = layers(*(4,) * (schedule.num_stages + 1)) if model is None else model
    data = [batch(samples or schedule.num_microbatches, 4, 4)]
    return ppedu.train(model, schedule, data, mse, momentum, steps, device="cpu", pace=pace, progress=False, **rest)


def quickest(schedule: Schedule, pace: Costs, ideal: float, over: float) -> Timeline:
    """The quickest step of a run; of several runs, where the machine was too busy to come within `over` of the ideal.
    No step may be quicker than the ideal: that would be a pace that was not kept."""
    best: Timeline | None = None
    for _ in range(6):
        for timeline in train(schedule, 2, pace).timelines:
            assert timeline.makespan >= ideal
            best = timeline if best is None or timeline.makespan < best.makespan else best
        if best.makespan <= over * ideal:
            break
    return best


# time


@pytest.mark.timing
@pytest.mark.parametrize("m", [1, 3])
def test_naive_uses_a_quarter_of_four_devices(m):
    ideal = P * m * 2 * 0.02
    timeline = quickest(ppedu.naive(P, m), Costs(forward=0.02, backward=0.02), ideal, 1.05)
    assert timeline.makespan <= 1.05 * ideal
    assert timeline.utilization == pytest.approx(0.25, abs=0.02)


@pytest.mark.timing
@pytest.mark.parametrize("make", [ppedu.gpipe, ppedu.one_f_one_b], ids=lambda f: f.__name__)
def test_microbatches_fill_the_pipeline(make):
    """22 operations' time for p=4, m=8, both: utilization 8/11 (GPipe, Huang et al., 2019; Narayanan et al., SC'21)."""
    timeline = quickest(make(P, M), Costs(forward=0.02, backward=0.02), 22 * 0.02, 1.08)
    assert timeline.makespan <= 1.08 * 22 * 0.02
    assert timeline.utilization == pytest.approx(8 / 11, abs=0.06)


UNIT = 0.015  # seconds that the tests below take for 1
CASES = {
    "gpipe, messages of 1": (ppedu.gpipe, Costs(forward=1, backward=2, transfer=1), 39),
    "1f1b, messages of 1": (ppedu.one_f_one_b, Costs(forward=1, backward=2, transfer=1), 49),
    "gpipe, stage 1 twice as slow": (ppedu.gpipe, Costs(forward=[1, 2, 1, 1], backward=[2, 4, 2, 2]), 57),
    "1f1b, stage 1 twice as slow": (ppedu.one_f_one_b, Costs(forward=[1, 2, 1, 1], backward=[2, 4, 2, 2]), 53),
}


def scaled(costs: Costs) -> Costs:
    def times(value):
        return [UNIT * v for v in value] if isinstance(value, Sequence) else UNIT * value

    return Costs(forward=times(costs.forward), backward=times(costs.backward), transfer=times(costs.transfer))


@pytest.mark.timing
@pytest.mark.parametrize(("make", "costs", "units"), CASES.values(), ids=CASES)
def test_a_paced_run_follows_the_prediction(make, costs, units):
    """Messages that take time, and a slow stage: where GPipe and 1F1B no longer take the same time."""
    assert ppedu.simulate(make(P, M), costs).makespan == units
    timeline = quickest(make(P, M), scaled(costs), units * UNIT, 1.08)
    assert timeline.makespan <= 1.08 * units * UNIT
    predicted = ppedu.simulate(make(P, M), scaled(costs))
    began = {span.action: span.start for span in predicted.spans}
    late = [span.start - began[span.action] for span in timeline.spans]
    assert min(late) > -1e-3  # nothing starts before its time
    assert max(late) <= 0.1 * units * UNIT


@pytest.mark.timing
def test_no_overrun_where_the_pace_is_kept():
    runs = (train(ppedu.one_f_one_b(2, 3), 1, Costs(forward=0.05, backward=0.05)) for _ in range(6))
    run = next((run for run in runs if not run.overruns), None)
    assert run is not None
    assert "overran" not in run.timeline.provenance


# pace, whatever the machine does


class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.03)
        return x.clone()


def test_operations_that_overrun_their_pace_are_reported():
    """Only those of the slow stage: its forwards sleep longer than their pace. What they took is told, and the captions say so."""
    model = [nn.Linear(4, 4).double(), Slow(), nn.Linear(4, 4).double()]
    run = train(ppedu.one_f_one_b(3, 2), 2, Costs(forward=0.02, backward=10e-3), model=model)
    forwards = [o for o in run.overruns if o.rank == 1 and str(o.action) in ("1F0", "1F1")]
    assert [(o.step, str(o.action)) for o in forwards] == [(0, "1F0"), (0, "1F1"), (1, "1F0"), (1, "1F1")]
    for overrun in forwards:
        assert overrun.pace == 0.02
        assert 0.03 <= overrun.took < 1
    assert "operations overran their pace, by up to " in run.timeline.provenance
    span = next(s for s in run.timeline.spans if str(s.action) == "1F0")
    assert span.duration >= 0.03  # and the picture shows the time that it really took


def test_a_pace_that_nothing_can_keep():
    run = train(ppedu.gpipe(2, 3), 1, Costs(forward=1e-7, backward=1e-7))
    assert len(run.overruns) == 12
    assert "12 of 12 operations overran their pace" in run.timeline.provenance


def test_paced_operations_take_their_pace_and_real_mathematics_go_on():
    pace = Costs(forward=[0.002, 0.004], backward=[0.006, 0.008])
    model, twin = layers(4, 5, 4), layers(4, 5, 4)
    paced, free = train(ppedu.gpipe(2, 3), 2, pace, model), train(ppedu.gpipe(2, 3), 2, None, twin)
    for span in paced.timeline.spans:
        assert span.duration >= pace.duration(span.action)
    assert paced.losses == free.losses
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
    assert paced.where.startswith("measured: 2 CPU processes on ")
    assert paced.where.endswith(", paced F=0.002,0.004 s B=0.006,0.008 s")
    assert "paced" not in free.where
    assert paced.timeline.provenance.startswith(paced.where)


# order


ANY = {
    "naive": (lambda: ppedu.naive(3, 2), None),
    "GPipe": (lambda: ppedu.gpipe(P, M), None),
    "1F1B": (lambda: ppedu.one_f_one_b(P, M), None),
    "1F1B paced": (lambda: ppedu.one_f_one_b(3, 4), Costs(forward=0.002, backward=0.003, transfer=0.002)),
    "ZB-V": (lambda: golden("zbv_p4_m8"), None),
    "interleaved": (lambda: golden("interleaved_p4_m8_v2"), None),
}


@pytest.mark.parametrize(("make", "pace"), ANY.values(), ids=ANY)
def test_spans_never_overlap_and_respect_dependencies(make, pace):
    schedule = make()
    run = train(schedule, 3, pace)
    assert len(run.timelines) == len(run.losses) == 3
    travel = pace.transfer if pace else 0.0
    for timeline in run.timelines:
        assert timeline.complete
        assert timeline.unit == "s"
        assert timeline.start == 0
        end_of = {a: span.end for span in timeline.spans for a in span.action.actions}
        for rank in range(schedule.num_ranks):
            spans = timeline.spans_of(rank)
            assert tuple(s.action for s in spans) == schedule.orders[rank]
            assert all(a.end <= b.start for a, b in pairwise(spans))
        for span in timeline.spans:
            for needed in ppedu.dependencies(span.action, schedule):
                away = schedule.rank_of_stage[needed.stage] != span.rank
                assert span.start >= end_of[needed] + travel * away


# memory


@pytest.mark.parametrize(
    ("make", "wanted"), [(ppedu.gpipe, (8, 8, 8, 8)), (ppedu.one_f_one_b, (4, 3, 2, 1)), (ppedu.naive, (1, 1, 1, 1))]
)
def test_in_flight(make, wanted):
    """p=4, m=8: GPipe keeps m on every rank, 1F1B p - r (Narayanan et al., SC'21, section 2.2)."""
    run = train(make(P, M), steps=2)
    assert [t.peak_in_flight for t in run.timelines] == [wanted, wanted]


def test_gpipe_keeps_eight_times_the_bytes_of_1f1b_on_the_first_stage():
    """p=4, m=32: 32 microbatches against 4, each as many bytes."""

    def peaks(schedule):
        model = ByteGPT(blocks=4, width=8, heads=2, context=6)
        tokens = torch.randint(256, (64, 7), generator=torch.Generator().manual_seed(0))
        data = [(tokens[:, :-1], tokens[:, 1:])]
        return ppedu.train(model, schedule, data, next_byte_loss, momentum, device="cpu", progress=False)

    gpipe, one_f_one_b = (peaks(make(4, 32)).peak_activation_bytes for make in (ppedu.gpipe, ppedu.one_f_one_b))
    assert gpipe[0] / one_f_one_b[0] == pytest.approx(8, rel=0.05)
    for rank in range(4):
        assert gpipe[rank] / one_f_one_b[rank] == pytest.approx(32 / (4 - rank), rel=0.05)


def three_stages() -> list[nn.Module]:
    def stage(a: int, b: int, *rest: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(a, b), *rest).double()

    return [stage(4, 8, nn.Tanh()), stage(8, 6, nn.Tanh()), stage(6, 4)]


HALVES = """
F0 F1 F2 F3 I0 I1 I2 I3 W0 W1 W2 W3
F0 F1 F2 F3 I0 I1 I2 W0 I3 W1 W2 W3
F0 I0 W0 F1 I1 W1 F2 I2 W2 F3 I3 W3
"""


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (ppedu.gpipe(3, 4), (4 * 8, 4 * (8 + 6), 4 * (6 + 4))),
        (ppedu.one_f_one_b(3, 4), (3 * 8, 2 * (8 + 6), 1 * (6 + 4))),
        (ppedu.naive(3, 4), (8, 8 + 6, 6 + 4)),
        # I frees a Tanh's output, or the model's, and keeps for W the Linear's input and the gradient of its output: here
        # that is as much, on each rank
        (Schedule.from_text(HALVES, "halves"), (4 * 8, 4 * (8 + 6), 6 + 4)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_activation_bytes_by_hand(schedule, wanted):
    """Numbers a sample that wait for a backward: a Linear's input (not where it is the batch), a Tanh's output, and the
    model's output, which the loss saves. Two samples a microbatch, 8 bytes each."""
    run = train(schedule, 3, model=three_stages(), samples=8)
    assert run.peak_activation_bytes == tuple(2 * 8 * numbers for numbers in wanted)
    assert run.peak_device_bytes is None
