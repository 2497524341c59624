"""On GPUs no schedule hangs: the real interpreter's requests, replayed in a model of what CUDA and NCCL do with them.

First the model alone, then all schedules, then defects put back one at a time, which the model must catch.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gpu_model import (
    COMPUTE,
    CONNECTIONS,
    AwaitDevice,
    AwaitMark,
    DeadlockError,
    Launch,
    Listen,
    Mark,
    Note,
    Post,
    SharedStreamError,
    Step,
    Take,
    Talk,
    Trace,
    replay,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from network import RecordedEvent, RecordingGpu, Threads
from orders import F, dualpipe, dualpipe_v, golden, legal_schedules
from runtime_helpers import Plain, assert_equal_training, batch, momentum, mse
from torch import nn

import ppedu
from ppedu.core.schedule import Schedule
from ppedu.runtime import train as train_module
from ppedu.runtime.rank import accelerator
from ppedu.runtime.rank import interpreter as execute
from ppedu.runtime.rank import timers as clocks
from ppedu.runtime.rank.accelerator import OPERATIONS_AHEAD, check_connections
from ppedu.runtime.rank.lower import Send
from ppedu.runtime.rank.timers import EventTimer, Moment, in_background

WIDTH = 3
PACE = ppedu.Costs(1e-5, 1e-5)


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    """Threads take the place of processes; hypothesis wants no monkeypatch, which lives for one example."""
    kept = train_module.run_launched
    yield
    train_module.run_launched = kept


# the model alone: traces that one can follow by hand


def kernel(name: str) -> Launch:
    return Launch(name, frozenset([name]))


def end(stream: str) -> Post:
    """One end of the only message on a stream."""
    return Post(stream, stream, stream)


def host(*steps: Step) -> Trace:
    return Trace([COMPUTE, "a", "b", "c"], list(steps))


MODEL: dict[str, tuple[bool, int, list[Trace]]] = {  # what it shows -> (it ends, hardware queues, traces)
    "a message meets its other end": (True, 8, [host(end("a")), host(end("a"), Take("a"))]),
    "a message without its other end lasts for ever": (False, 8, [host(end("a")), host()]),
    "messages on streams of their own pass one another": (
        True, 8, [host(end("a"), end("b")), host(end("b"), end("a"))],
    ),
    "on one stream they do not": (
        False, 8, [host(Post(1, "a", "a"), Post(2, "a", "a")), host(Post(2, "a", "a"), Post(1, "a", "a"))],
    ),
    "a sum wants all its ranks": (False, 8, [host(Post(1, "a", "a", 3)), host(Post(1, "a", "a", 3)), host()]),
    "and has them here": (True, 8, [host(Post(1, "a", "a", 3))] * 3),
    "a message waits for what is on the compute stream when it is posted": (
        False, 8, [host(end("a"), Take("a"), end("b")), host(end("b"), Take("b"), end("a"))],
    ),
    "but not for what comes later": (True, 8, [host(end("b"), end("a"), Take("a")), host(end("b"), Take("b"), end("a"))]),
    "the host goes on where its stream waits": (True, 8, [host(end("a"), Take("a"), Talk(1)), host(Talk(1), Listen(1), end("a"))]),
    "a host that waits for an event does not": (
        False, 8, [host(end("a"), Take("a"), Mark(1), AwaitMark(1), Talk(1)), host(Talk(1), Listen(1), end("a"))],
    ),
    "an event waits for nothing on other streams": (
        True, 8, [host(end("a"), Mark(1), AwaitMark(1), Talk(1)), host(Talk(1), Listen(1), end("a"))],
    ),
    "the whole device includes them": (False, 8, [host(end("a"), AwaitDevice(), Talk(1)), host(Talk(1), Listen(1), end("a"))]),
    "so does the first launch of a kernel": (
        False, 8, [host(end("a"), kernel("F"), Talk(1)), host(Talk(1), Listen(1), end("a"))],
    ),
    "but no later one": (True, 8, [host(kernel("F"), end("a"), kernel("F"), Talk(1)), host(Talk(1), Listen(1), end("a"))]),
    "what cannot start holds up its hardware queue": (
        False, 1, [host(kernel("F"), end("a"), Post("a2", "a", "a"), kernel("F"), Mark(1), AwaitMark(1), end("b")),
                   host(end("b"), Take("b"), end("a"), Post("a2", "a", "a"))],
    ),
    "and no other one": (
        True, 4, [host(kernel("F"), end("a"), Post("a2", "a", "a"), kernel("F"), Mark(1), AwaitMark(1), end("b")),
                  host(end("b"), Take("b"), end("a"), Post("a2", "a", "a"))],
    ),
    "hosts wait for one another": (False, 8, [host(Talk(1), Listen(1), Talk(2)), host(Talk(2), Listen(2), Talk(1))]),
}  # fmt: skip


@pytest.mark.parametrize(("ends", "connections", "traces"), MODEL.values(), ids=MODEL)
def test_the_model(ends, connections, traces):
    with nullcontext() if ends else pytest.raises(DeadlockError):
        replay(traces, connections)


def test_a_deadlock_says_what_hosts_and_streams_wait_for():
    with pytest.raises(DeadlockError) as caught:
        replay([host(kernel("F"), end("a"), Take("a"), Mark(7), AwaitMark(7)), host(Talk("x"), Listen("x"))])
    assert str(caught.value).splitlines() == [
        "rank 0",
        "    host: AwaitMark(number=7), after F",
        "    stream compute: the compute stream waits for message a",
        "    stream a: message a runs, and waits for its other end",
        "rank 1",
        "    host: Listen(key='x'), after nothing",
    ]


@pytest.mark.parametrize("bound", [1, 2, 5, None])
def test_how_far_a_host_is_ahead(bound):
    """Of seven operations; it waits for the event after the one that was launched `bound` before."""
    steps: list[Step] = []
    for k in range(7):
        steps += [AwaitMark(k - bound)] if bound and k >= bound else []
        steps += [Launch(f"F{k}", frozenset(), operation=True), Mark(k)]
    assert replay([host(*steps)]) == [bound or 7]


def test_two_directions_do_not_share_a_stream():
    with pytest.raises(SharedStreamError, match=r"from 1 and from 0 on stream a"):
        replay([host(Post(1, "a", "from 0"), Post(2, "a", "from 1"))])


# the runtime, on all schedules


def trained(
    schedule: Schedule,
    samples: Sequence[int] = (),
    pace: ppedu.Costs | None = None,
    threads: Threads | None = None,
) -> tuple[list[Trace], Any]:
    """Train on ranks with GPUs that write down what is asked of them, a step for each number of samples, and compare with
    plain training: (traces, the Run)."""
    m, stages = schedule.num_microbatches, schedule.chain_length
    torch.manual_seed(0)
    made = [nn.Tanh() if (s + stages) % 3 == 2 else nn.Linear(WIDTH, WIDTH) for s in range(stages)]
    model = nn.Sequential(*made).double()
    samples = samples or (2 * m + m // 2, 2 * m + 1)  # sizes of 2 and 3, then others at the same microbatches
    data = [batch(n, WIDTH, WIDTH, seed=n) for n in samples]
    trains = any(a.kind is not F for order in schedule.orders for e in order for a in e.actions)
    plain = Plain(model, data, mse, momentum if trains else None, len(data))
    threads = train_module.run_launched = threads or Threads(True, RecordingGpu)
    run = ppedu.train(
        model, schedule, data, mse, momentum, len(data), "cpu", pace, gradients=True, progress=False
    )  # fmt: skip
    plain.gradients = plain.gradients if trains else {}
    assert_equal_training(run.losses, run.gradients or {}, model.state_dict(), plain)
    return threads.network.traces, run


def assert_safe(traces: Sequence[Trace]) -> None:
    """It ends, on as many hardware queues as CUDA has by itself, and hosts are hardly ahead of their GPUs."""
    assert max(replay(traces, max(CONNECTIONS, *(len(trace.streams) for trace in traces)))) <= OPERATIONS_AHEAD


def published() -> Iterator[Any]:
    for (name, make), p, m in itertools.product(ppedu.SCHEDULES.items(), (2, 4), (2, 4, 8)):
        yield pytest.param(make(p, m), id=f"{name} p={p} m={m}")


STEPS = {2: 1, 4: 3, 8: 2}


@pytest.mark.parametrize("schedule", list(published()))
def test_published_schedules(schedule):
    m = schedule.num_microbatches
    traces, _ = trained(schedule, (2 * m + m // 2, 2 * m + 1, 3 * m)[: STEPS[m]])
    assert_safe(traces)


@pytest.mark.parametrize("schedule", [s for s in published() if s.values[0].num_microbatches != 8])
def test_published_schedules_paced(schedule):
    traces, _ = trained(schedule, pace=PACE)
    assert_safe(traces)


GOLDEN = ("zbh1_p4_m8", "zbh2_p4_m8", "zbv_p4_m8", "interleaved_p4_m8_v2", "looped_bfs_p4_m8_v2")
OTHERS = [*map(golden, GOLDEN), dualpipe(), dualpipe_v(), ppedu.one_f_one_b(5, 3), ppedu.forward_only(3, 6)]


@pytest.mark.parametrize("schedule", OTHERS, ids=lambda s: s.name)
def test_orders_from_elsewhere(schedule):
    assert_safe(trained(schedule)[0])


@settings(max_examples=80)
@given(legal_schedules(), st.sampled_from([None, PACE, replace(PACE, transfer=1e-5)]))
def test_any_legal_schedule(schedule, pace):
    assert_safe(trained(schedule, pace=pace)[0])


def test_sequences_that_change_their_length():
    lengths = [5, 9, 9, 2, 5]

    def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        g = torch.Generator().manual_seed(step)
        inputs, targets = torch.randn(2, 7, lengths[step], WIDTH, generator=g, dtype=torch.float64)
        return inputs, targets

    threads = train_module.run_launched = Threads(True, RecordingGpu)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).double()
    ppedu.train(model, ppedu.one_f_one_b(3, 3), data, mse, momentum, len(lengths), device="cpu", progress=False)
    assert_safe(threads.network.traces)


def notes(trace: Trace) -> list[tuple[int, object]]:
    return [(k, step.what) for k, step in enumerate(trace.steps) if isinstance(step, Note)]


@pytest.mark.parametrize("make", ppedu.SCHEDULES.values(), ids=ppedu.SCHEDULES)
def test_what_a_step_launches_was_rehearsed_while_no_message_was_on_its_way(make):
    traces, _ = trained(make(4, 4), (10, 9, 12))
    for trace in traces:
        rehearses, loaded, running, began = False, set[Any](), set[Any](), 0
        for step in trace.steps:
            match step:
                case Note("rehearsal"):
                    assert not running
                    rehearses, began = True, began + 1
                case Note("rehearsed"):
                    rehearses = False
                case Launch(what, kernels, operation=True):
                    assert rehearses or kernels <= loaded, what
                    loaded |= kernels
                case Post(key):
                    assert began
                    assert not rehearses
                    running.add(key)
                case Take(key):
                    running.discard(key)
        assert began == 3
        assert not running


class Restless(nn.Module):
    """Changes whatever a layer can change, and lets random numbers into its output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3)
        self.register_buffer("total", torch.zeros(()))
        self.calls, self.last, self.log = 0, None, {"seen": [torch.zeros((), dtype=torch.float64)]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls, self.last = self.calls + 1, x.detach()
        self.total = self.total + x.detach().sum()
        self.log["seen"].append(self.log["seen"][-1] + x.detach().mean())
        self.log["seen"][0] += 0.1
        return (
            self.drop(self.norm(self.linear(x))) + self.calls / 100 + self.total.tanh() / 10 + self.log["seen"][-1] / 10
        )


class Counting:
    """A loss with a state of its own."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return mse(outputs, targets) * self.calls


def restless(schedule: Schedule, gpu: Any) -> dict[str, torch.Tensor]:
    """Everything that training leaves: losses, gradients, weights, buffers, layers' own attributes, random numbers."""
    threads = train_module.run_launched = Threads(True, gpu)
    torch.manual_seed(0)
    model = nn.Sequential(*(Restless() for _ in range(schedule.chain_length))).double()
    data = [batch(n, WIDTH, WIDTH, seed=n) for n in (10, 9)]
    run = ppedu.train(model, schedule, data, Counting(), momentum, 3, device="cpu", gradients=True, progress=False)
    found = {"losses": torch.tensor(run.losses, dtype=torch.float64), **(run.gradients or {})}
    found |= {f"{name} afterwards": tensor for name, tensor in model.state_dict().items()}
    for rank in threads.ranks:
        for stage, held in rank.stages.items():
            found[f"calls of stage {stage}"] = torch.tensor([layer.calls for layer in held.module])
            found[f"last of stage {stage}"] = held.module[0].last
            found[f"log of stage {stage}"] = torch.stack(held.module[0].log["seen"])
    found |= {f"random numbers of rank {rank}": state for rank, state in threads.random_states.items()}
    return found


def differing(schedule: Schedule) -> list[str]:
    with_gpus, without = restless(schedule, RecordingGpu), restless(schedule, None)
    assert with_gpus.keys() == without.keys()
    return [name for name, tensor in without.items() if not torch.equal(tensor, with_gpus[name])]


RESTLESS = [ppedu.gpipe(1, 4), ppedu.one_f_one_b(3, 4), ppedu.zb_h1(2, 4), ppedu.dualpipe(2, 4)]


@pytest.mark.parametrize("schedule", RESTLESS, ids=lambda s: s.name)
def test_nobody_notices_a_rehearsal(schedule):
    """The same bits as without a GPU, dropout, running means and layers that count included."""
    assert differing(schedule) == []


def test_a_rehearsal_that_leaves_traces_is_noticed(monkeypatch):
    monkeypatch.setattr(execute, "unnoticed", lambda *_: nullcontext())
    found = " ".join(differing(ppedu.one_f_one_b(3, 4)))
    for what in ("losses", "0.linear.weight afterwards", "0.total", "running_mean", "calls of", "random numbers of"):
        assert what in found


def test_the_peak_is_that_of_the_steps():
    traces, run = trained(ppedu.one_f_one_b(2, 4), (9, 13))
    for trace in traces:
        found = [what for _, what in notes(trace) if isinstance(what, str)]
        assert found == ["rehearsal", "the peak is reset", "rehearsed", "rehearsal", "rehearsed"]
    assert run.peak_device_bytes == (RecordingGpu.PEAK,) * 2


# each defect put back


def waits_for_device_at_start(monkeypatch: Any) -> None:
    class Waiting(EventTimer):
        def __init__(self, clock: Any, gpu: Any, tell: Any) -> None:
            gpu.finish_all()
            super().__init__(clock, gpu, tell)

    monkeypatch.setattr(execute, "EventTimer", Waiting)


def waits_for_device_after_paced(monkeypatch: Any) -> None:
    def waiting(mathematics: Any, gpu: Any) -> None:
        in_background(mathematics, gpu)
        gpu.finish_all()

    monkeypatch.setattr(execute, "in_background", waiting)


def no_rehearsal(monkeypatch: Any) -> None:
    monkeypatch.setattr(execute.Rank, "_rehearse", lambda *_: None)


def one_form_rehearsed(monkeypatch: Any) -> None:
    real = execute.rehearsed
    monkeypatch.setattr(execute, "rehearsed", lambda *given: dict(list(real(*given).items())[:1]))


def way_left_out(monkeypatch: Any) -> None:
    """Microbatches of one form count as alike, whichever backwards are split."""
    real = execute.rehearsed

    def fewer(schedule: Schedule, forms: Any, known: Any) -> Any:
        kept: dict[Any, Any] = {}
        for way, i in real(schedule, forms, known).items():
            kept.setdefault(way[:2], (way, i))
        return dict(kept.values())

    monkeypatch.setattr(execute, "rehearsed", fewer)


def chain_left_out(monkeypatch: Any) -> None:
    """A form that one chain knows counts as known to the other."""
    real = execute.rehearsed

    def fewer(schedule: Schedule, forms: Any, known: Any) -> Any:
        met = {form for _, form, _ in known}
        return {way: i for way, i in real(schedule, forms, known).items() if way[1] not in met}

    monkeypatch.setattr(execute, "rehearsed", fewer)


def rehearsed_once(monkeypatch: Any) -> None:
    """No gradient is there to add to."""
    real = execute.Rank._interpret

    def without_gradients(self: Any, program: Any, shown: Any, timer: Any, pace: Any) -> None:
        if shown.group.backend == "gloo":
            for stage in self.stages.values():
                stage.module.zero_grad(set_to_none=True)
        real(self, program, shown, timer, pace)

    monkeypatch.setattr(execute.Rank, "_interpret", without_gradients)


DEFECTS: dict[Callable[[Any], None], tuple[Schedule, tuple[int, ...], ppedu.Costs | None]] = {
    waits_for_device_at_start: (ppedu.one_f_one_b(2, 4), (9, 9), None),
    waits_for_device_after_paced: (ppedu.one_f_one_b(2, 4), (9,), PACE),
    no_rehearsal: (ppedu.one_f_one_b(4, 8), (20,), None),
    one_form_rehearsed: (ppedu.one_f_one_b(4, 8), (20,), None),
    way_left_out: (ppedu.dualpipev(4, 4), (10,), None),
    chain_left_out: (ppedu.dualpipe(4, 4), (10, 13), None),
    rehearsed_once: (ppedu.zb_h1(4, 8), (20,), None),
}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.__name__)
def test_defects_hang(defect, monkeypatch):
    schedule, samples, pace = DEFECTS[defect]
    assert_safe(trained(schedule, samples, pace)[0])
    defect(monkeypatch)
    traces, _ = trained(schedule, samples, pace)  # the numbers are right all the same
    with pytest.raises(DeadlockError):
        assert_safe(traces)


def test_a_host_without_a_bound_is_seen(monkeypatch):
    monkeypatch.setattr(clocks, "OPERATIONS_AHEAD", 10**6)
    traces, _ = trained(ppedu.gpipe(2, 8))
    assert max(replay(traces)) > 4 * OPERATIONS_AHEAD


def test_both_directions_on_one_stream_are_seen_and_would_hang():
    traces, _ = trained(ppedu.one_f_one_b(3, 6), threads=Threads(True, RecordingGpu, shared=True))
    with pytest.raises(SharedStreamError):
        replay(traces)
    for trace in traces:
        trace.steps = [replace(step, direction=None) if isinstance(step, Post) else step for step in trace.steps]
    with pytest.raises(DeadlockError):
        replay(traces)


@pytest.mark.parametrize("make", [ppedu.gpipe, ppedu.one_f_one_b, ppedu.interleaved, ppedu.zb_h1])
def test_a_hardware_queue_for_each_stream_is_enough_and_fewer_are_not(make):
    traces, _ = trained(make(4, 8))
    streams = max(len(trace.streams) for trace in traces)
    replay(traces, connections=streams)
    for connections in (1, streams - 1):
        with pytest.raises(DeadlockError):
            replay(traces, connections)


@pytest.mark.parametrize(
    ("variable", "most"), [(None, CONNECTIONS), ("1", 1), ("2", 2), ("8", 8), ("32", 32), ("as many as there are", 99)]
)
def test_as_many_streams_as_hardware_queues(variable, most, monkeypatch):
    monkeypatch.delenv(accelerator.CONNECTIONS, raising=False)
    if variable is not None:
        monkeypatch.setenv(accelerator.CONNECTIONS, variable)
    check_connections(most)
    if most < 99:
        with pytest.raises(
            ValueError, match=rf"{accelerator.CONNECTIONS}={most} .*{most + 1}: its mathematics.*set it to 32"
        ):
            check_connections(most + 1)


def test_receives_in_another_order_than_the_sends_hang():
    traces, _ = trained(ppedu.gpipe(2, 4))
    steps = traces[1].steps
    first, second = [k for k, step in enumerate(steps) if isinstance(step, Post) and step.stream == (0, 1)][:2]
    steps[first], steps[second] = steps[second], steps[first]
    with pytest.raises(DeadlockError):
        replay(traces)


def test_a_lost_send_hangs():
    traces, _ = trained(ppedu.gpipe(2, 4))
    lost = (0, 1, 2)
    traces[0].steps = [step for step in traces[0].steps if not isinstance(step, Post | Take) or step.key != lost]
    with pytest.raises(DeadlockError, match=r"rank 1\n.*\n.*waits for message \(0, 1, 2\)"):
        replay(traces)


# what else goes through the accelerator


class ScriptedGpu:
    """Writes down whom the host waits for. begun: whether an operation has begun when the host asks."""

    def __init__(self, begun: bool = False) -> None:
        self.begun, self.log, self.made = begun, list[Any](), 0

    def use(self) -> None:
        self.log.append(("use", threading.get_ident()))

    def finish(self) -> None:
        self.log.append(("finish", threading.get_ident()))

    def event(self) -> Any:
        """The origin, then a begin and an end for each operation; their times are 0, 1, 2 ... ms."""
        number, self.made = self.made, self.made + 1
        name = ("begin" if number % 2 else "end") + f" of {(number - 1) // 2}" if number else "origin"
        return SimpleNamespace(
            number=number,
            record=lambda: None,
            query=lambda: self.begun,
            synchronize=lambda: self.log.append(f"waits for {name}"),
            elapsed_time=lambda later: later.number - number,
        )


def timed(gpu: ScriptedGpu, operations: Sequence[tuple[int, int | None]]) -> EventTimer:
    timer = EventTimer(lambda: 10.0, gpu, lambda at: gpu.log.append(f"shows {at}"))
    gpu.log.clear()
    for at, waits_at in operations:
        timer.start(at, waits_at)
        timer.end()
    return timer


AHEAD_OF_TWO = [(2, 1), (4, 3)]
AFTER_MESSAGE = ["shows 1", "waits for begin of 0", "shows 2", "waits for end of 0"]


@pytest.mark.parametrize(
    ("begun", "first", "wanted"),
    [
        (False, (2, 1), AFTER_MESSAGE),  # the receive until the operation has begun, then the operation
        (True, (2, 1), AFTER_MESSAGE[2:]),
        (False, (2, None), AFTER_MESSAGE[2:]),
    ],
)
def test_the_board_shows_what_the_gpu_is_at(begun, first, wanted):
    gpu = ScriptedGpu(begun)
    timer = timed(gpu, [first, (4, 3)])
    assert (gpu.log, timer.unsettled()) == ([], 2)  # two operations ahead: nobody waits
    timer.start(6, 5)
    assert gpu.log == wanted
    assert timer.unsettled() == 4
    timer.end()
    gpu.log.clear()
    timer.settle()
    assert timer.unsettled() is None
    assert gpu.log[-1] == "waits for end of 2"


def test_moments_are_those_of_the_gpu():
    timer = timed(ScriptedGpu(), [(2, None), (4, 3), (6, None)])
    assert timer.moments() == [Moment(10 + k / 1e3, 10 + (k + 1) / 1e3, 10 + (k + 1) / 1e3) for k in (1, 3, 5)]


def test_paced_mathematics_have_the_gpu_in_their_thread():
    gpu, there = ScriptedGpu(), []
    in_background(lambda: there.append(threading.get_ident()), gpu)
    assert gpu.log == [("use", there[0]), ("finish", there[0])]
    assert there[0] != threading.get_ident()


FAULT = "CUDA error: device-side assert triggered"


class Faulty(nn.Module):
    """Raises in microbatch 2 of four, which has a 99 in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.linear = text, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x == 99).any():
            raise RuntimeError(self.text)
        return self.linear(x)


class FaultyGpu(RecordingGpu):
    """Tells of a fault where the host waits for the second operation of the step itself."""

    def event(self) -> RecordedEvent:
        return FaultyEvent(self.trace)


class FaultyEvent(RecordedEvent):
    def synchronize(self) -> None:
        super().synchronize()
        steps = self.trace.steps
        if (
            Note("rehearsed") in steps
            and sum(isinstance(s, AwaitMark) for s in steps[steps.index(Note("rehearsed")) :]) == 3
        ):
            raise RuntimeError(FAULT)  # the third wait: the first one is for the timer's origin


@pytest.mark.parametrize(
    ("text", "gpu", "blamed"),
    [
        (FAULT, RecordingGpu, 1),  # raised by F2, when F0 is over and F1 may not be
        ("not of the GPU", RecordingGpu, 2),
        ("", FaultyGpu, 1),  # raised when F3 waits for F1
    ],
)
def test_a_late_fault_is_blamed_on_the_oldest_operation_that_is_not_over(text, gpu, blamed):
    threads = train_module.run_launched = Threads(True, gpu)
    inputs, targets = batch(8, WIDTH, WIDTH)
    inputs[4] = 99 if text else 0
    model = nn.Sequential(Faulty(text)).double()
    with pytest.raises(RuntimeError, match=text or FAULT) as caught:
        ppedu.train(model, ppedu.gpipe(1, 4), [(inputs, targets)], mse, device="cpu", progress=False)
    assert threads.heartbeats[0].cells[:2] == [0, blamed]
    assert ("oldest operation that was not over" in getattr(caught.value, "remark", "")) == (blamed == 1)


def shown_while_computing(threads: Threads) -> int:
    """How often a heartbeat showed a send before what the host had launched was over."""
    found = 0
    for rank in threads.ranks:
        pending: set[int] = set()
        launched = False
        for step in threads.network.traces[rank.work.rank].steps:
            match step:
                case Launch(operation=True):
                    launched = True
                case Mark(number) if launched:
                    pending.add(number)
                    launched = False
                case AwaitMark(number):
                    pending = {one for one in pending if one > number}  # a stream is in order
                case Note((_, int(at))) if at >= 0 and isinstance(rank.work.program[at], Send):
                    found += bool(pending)
    return found


@pytest.mark.parametrize("nccl", [False, True])
def test_a_board_shows_a_send_through_the_host_once_there_is_something_to_send(nccl):
    """On NCCL a send waits on the GPU, and its host goes on. (So the test can fail.)"""
    threads = Threads(nccl, RecordingGpu)
    trained(ppedu.one_f_one_b(3, 4), threads=threads)
    assert bool(shown_while_computing(threads)) == nccl
