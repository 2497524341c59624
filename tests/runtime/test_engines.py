"""Every published order on both engines, ppedu's own and torch's: trained as one process does, in the order that it states."""

from __future__ import annotations

from itertools import pairwise

import pytest
from orders import dualpipe, dualpipe_v, golden
from runtime_helpers import Plain, assert_equal_training, backwards_reversed, batch, mse
from two_chains import adamw, blocks

import ppedu

pytestmark = pytest.mark.slow

GOLDEN = (
    "gpipe_p4_m8", "1f1b_p4_m8", "1f1b_p4_m2", "interleaved_p4_m8_v2", "looped_bfs_p4_m8_v2", "zbh1_p4_m8", "zbh2_p4_m8", "zbv_p4_m8",
)  # fmt: skip
ORDERS = {name: golden(name) for name in GOLDEN} | {
    "naive": ppedu.naive(4, 3),
    "dualpipe_p4_m8": dualpipe(),
    "dualpipev_p4_m10": dualpipe_v(),
    "backwards reversed": backwards_reversed(3, 4),
}
CASES = [
    (engine, name) for engine in ("ppedu", "torch") for name in ORDERS if (engine, name) != ("torch", "dualpipe_p4_m8")
]


@pytest.mark.parametrize(("engine", "name"), CASES, ids=lambda value: value)
def test_it_trains_as_one_process_does_in_the_order_stated(engine, name):
    """Losses, gradients and weights over three steps to 1e-12; torch takes whole microbatches, ppedu uneven ones, too."""
    schedule = ORDERS[name]
    samples = 2 * schedule.num_microbatches + (3 if engine == "ppedu" else 0)
    model, data = blocks(schedule.chain_length), [batch(samples, 4, 4, seed) for seed in range(2)]
    plain = Plain(model, data, mse, adamw, 3)
    run = ppedu.train(
        model, schedule, data, mse, adamw, 3, device="cpu", gradients=True, progress=False, engine=engine
    )  # fmt: skip
    assert_equal_training(run.losses, run.gradients, dict(model.state_dict()), plain)
    assert run.unsplit == ()
    assert len(run.timelines) == 3
    for timeline in run.timelines:
        assert timeline.complete
        assert (timeline.unit, timeline.start) == ("s", 0)
        assert timeline.peak_in_flight == ppedu.simulate(schedule).peak_in_flight
        end_of = {a: span.end for span in timeline.spans for a in span.action.actions}
        for rank, order in enumerate(schedule.orders):
            spans = timeline.spans_of(rank)
            assert tuple(span.action for span in spans) == order
            assert all(a.end <= b.start for a, b in pairwise(spans))
        for span in timeline.spans:
            at_once = span.action.actions[
                : 1 if engine == "torch" else 2
            ]  # torch runs a pair's second half after its first
            needs = [needed for action in at_once for needed in ppedu.dependencies(action, schedule)]
            assert all(span.start >= end_of[needed] for needed in needs)
