"""Random orders for real: what validation accepts trains as one process does, and what it refuses never starts."""

from __future__ import annotations

import copy

import pytest
from random_orders import WAYS, the_thousand
from runtime_helpers import Plain, assert_equal_training, batch, layers, momentum, mse

import ppedu
from ppedu.core.operations import Kind, ScheduleError
from ppedu.core.schedule import Schedule
from ppedu.runtime import train as train_module

pytestmark = pytest.mark.slow


def trainable(schedule: Schedule) -> bool:
    """One chain with backwards, over at least two ranks that have something to run."""
    kinds = {a.kind for order in schedule.orders for e in order for a in e.actions}
    return schedule.chains == 1 and Kind.F in kinds and len(kinds) > 1 and sum(map(bool, schedule.orders)) > 1


def sample(legal: bool, each: int, *marks: pytest.MarkDecorator) -> list[object]:
    """Some of every way in which the thousand were made, those that split B first."""
    found = []
    for way in WAYS:
        mine = [s for made, s, wrong, _, _ in the_thousand() if made == way and (wrong == ()) == legal and trainable(s)]
        mine.sort(key=lambda s: not any(a.kind is Kind.W for order in s.orders for e in order for a in e.actions))
        chosen = [*mine[: (each + 1) // 2], *mine[::-1][: each // 2]]
        found += [pytest.param(s, id=f"{way} {k + 1} of {each}", marks=marks) for k, s in enumerate(chosen)]
    return found


def model_for(schedule: Schedule):
    return layers(*[3] * schedule.num_stages, 2)


@pytest.mark.parametrize("schedule", [*sample(True, 2), *sample(True, 30, pytest.mark.soak)])
def test_what_is_accepted_trains_as_one_process_does(schedule):
    """Losses, gradients and weights to 1e-12 in float64, over two steps with uneven microbatches."""
    model = model_for(schedule)
    data = [batch(schedule.num_microbatches * 2 + 1, 3, 2, seed=step) for step in range(2)]
    plain = Plain(model, data, mse, momentum, 2)
    trained = copy.deepcopy(model)
    run = ppedu.train(trained, schedule, data, mse, momentum, steps=2, device="cpu", gradients=True, progress=False)
    assert_equal_training(run.losses, run.gradients, dict(trained.state_dict()), plain)
    assert run.timeline.complete
    for rank, order in enumerate(schedule.orders):
        assert tuple(span.action for span in run.timeline.spans_of(rank)) == order


@pytest.mark.parametrize("schedule", sample(False, 3))
def test_what_is_refused_never_starts(schedule, monkeypatch):
    def started(*_, **__):
        raise AssertionError("a rank was started")

    monkeypatch.setattr(train_module, "run_ranks", started)
    with pytest.raises(ScheduleError) as caught:
        ppedu.train(model_for(schedule), schedule, [batch(12, 3, 2)], mse, device="cpu", progress=False)
    assert caught.value.violations == ppedu.violations(schedule)


def test_an_accepted_order_does_start_there(monkeypatch):
    """So the test above would see it."""
    monkeypatch.setattr(train_module, "run_ranks", lambda *_, **__: (_ for _ in ()).throw(KeyError("started")))
    with pytest.raises(KeyError, match="started"):
        ppedu.train(layers(3, 3, 2), ppedu.gpipe(2, 2), [batch(4, 3, 2)], mse, device="cpu", progress=False)
