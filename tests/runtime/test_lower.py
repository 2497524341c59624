"""Programs: sends and receives that match, in an order that no transport can turn into a deadlock.

Each program is replayed under the rules of the transports, and replays of broken programs show that the replay bites.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orders import B, F, I, StuckError, dualpipe, dualpipe_v, golden, legal_schedules, rules
from runtime_helpers import backwards_reversed

from ppedu.core.operations import Action, ScheduleError
from ppedu.core.schedule import Schedule
from ppedu.runtime.rank.channels import AHEAD, pairs_of
from ppedu.runtime.rank.lower import Instruction, Program, Recv, Send, lower
from ppedu.schedules import SCHEDULES, forward_only, gpipe, one_f_one_b
from ppedu.schedules import dualpipe as dualpipe_built

BUILDERS = (*SCHEDULES.values(), forward_only)
GOLDEN = ("zbh1_p4_m8", "zbh2_p4_m8", "zbv_p4_m8", "interleaved_p4_m8_v2", "looped_bfs_p4_m8_v2")
Pair = tuple[int, int]


def built() -> st.SearchStrategy[Schedule]:
    def make(builder, p: int, m: int) -> Schedule:
        return builder(p + p % 2 if builder is dualpipe_built else p, m)  # DualPipe pairs its ranks

    return st.builds(make, st.sampled_from(BUILDERS), st.integers(1, 6), st.integers(1, 12))


def special() -> list[Schedule]:
    return [*map(golden, GOLDEN), dualpipe(), dualpipe_v(), backwards_reversed(2, 6), backwards_reversed(4, 5)]


# what a program is


def results_needed_elsewhere(schedule: Schedule) -> dict[Action, Pair]:
    """Action -> (rank that computes it, rank that needs it), written down without ppedu's own rule."""
    found = {}
    length, rank_of = schedule.num_stages // schedule.chains, schedule.rank_of_stage
    for action in (a for order in schedule.orders for e in order for a in e.actions):
        forward = action.kind is F
        at_the_end = action.stage % length == (length - 1 if forward else 0)
        if action.kind not in (F, B, I) or at_the_end:
            continue
        source, to = rank_of[action.stage], rank_of[action.stage + (1 if forward else -1)]
        if source != to:
            found[action] = (source, to)
    return found


def inputs_of(action: Action, there: set[Action], length: int) -> set[Action]:
    """The results of other stages that an action takes."""
    return {a for options in rules(action, length) for a in options if a in there and a.stage != action.stage}


def check_program(schedule: Schedule) -> None:
    programs = lower(schedule)
    needed = results_needed_elsewhere(schedule)
    there = {a for order in schedule.orders for e in order for a in e.actions}
    sends: dict[Pair, list[Action]] = defaultdict(list)
    receives: dict[Pair, list[Action]] = defaultdict(list)
    for rank, program in enumerate(programs):
        assert tuple(i for i in program if not isinstance(i, Send | Recv)) == schedule.orders[rank]
        have: set[Action] = set()
        just_computed: list[Action] = []
        unused: dict[int, Action] = {}  # source -> the last tensor taken from it since the last entry
        for instruction in program:
            if isinstance(instruction, Send):
                assert instruction.action in just_computed  # it leaves at once
                sends[rank, instruction.to].append(instruction.action)
            elif isinstance(instruction, Recv):
                receives[instruction.source, rank].append(instruction.action)
                have.add(instruction.action)
                unused[instruction.source] = instruction.action
            else:
                just_computed = list(instruction.actions)
                takes = {x for a in just_computed for x in inputs_of(a, there, schedule.num_stages // schedule.chains)}
                assert {x for x in takes if schedule.rank_of_stage[x.stage] != rank} <= have
                assert set(unused.values()) <= takes  # nothing is waited for earlier than it is needed
                unused = {}
                have |= set(just_computed)
        assert not unused
    assert {a: pair for pair, actions in sends.items() for a in actions} == needed
    assert sum(map(len, sends.values())) == len(needed)  # each once
    assert receives == sends  # and received once, in the order of sending


@given(built())
def test_builders_send_and_receive_once_and_in_order(schedule):
    check_program(schedule)


@settings(max_examples=300)
@given(legal_schedules())
def test_any_legal_order_sends_and_receives_once_and_in_order(schedule):
    check_program(schedule)


@pytest.mark.parametrize("schedule", special(), ids=lambda s: s.name)
def test_published_and_odd_orders(schedule):
    check_program(schedule)


def test_random_orders_are_of_every_kind():
    """The strategy above is no help if it only ever draws the usual."""
    drawn: list[Schedule] = []

    @settings(max_examples=200, database=None)
    @given(legal_schedules())
    def draw(schedule):
        drawn.append(schedule)

    draw()
    entries = [e for s in drawn for order in s.orders for e in order]
    assert any(len(e.actions) == 2 for e in entries)
    assert {a.kind for e in entries for a in e.actions} == set("FBIW")
    assert any(not order for s in drawn for order in s.orders)
    assert any(len(set(s.rank_of_stage)) < s.num_stages for s in drawn)
    early = [s for s in drawn if any(_taken_early(program) for program in lower(s))]
    assert len(early) > 10  # tensors that arrive before the one that is needed


def _taken_early(program: Program) -> bool:
    return any(isinstance(a, Recv) and isinstance(b, Recv) and a.source == b.source for a, b in pairwise(program))


def test_a_rank_that_takes_microbatches_in_reverse():
    """Rank 1 needs F2 first, so it takes F0 and F1 on the way to it: three tensors, once each, in order of sending."""
    *_, last = lower(backwards_reversed(2, 3))
    assert [str(i.action) if isinstance(i, Recv) else str(i) for i in last[:4]] == ["0F0", "0F1", "0F2", "1F2"]
    assert sum(isinstance(i, Recv) for i in last) == 3


def test_no_message_within_a_rank():
    """ZB-V's stages 3 and 4 are both on rank 3."""
    programs = lower(golden("zbv_p4_m8"))
    assert {i.action.stage for i in programs[3] if isinstance(i, Recv)} == {2, 5}
    assert {i.action.stage for i in programs[3] if isinstance(i, Send)} == {3, 4}
    assert not [i for i in programs[3] if isinstance(i, Send) and i.action.stage == (3 if i.action.kind is F else 4)]
    assert lower(gpipe(1, 4)) == gpipe(1, 4).orders
    assert pairs_of(programs) == {(r, r + 1) for r in range(3)} | {(r + 1, r) for r in range(3)}


def test_only_what_can_run_is_lowered():
    with pytest.raises(ScheduleError, match="rank 0 waits at B0 for rank 1's B0, which waits behind F1"):
        lower(Schedule.from_text("F0 B0 F1 B1\nF0 F1 B0 B1"))
    with pytest.raises(ScheduleError, match="rank 0 runs F0 twice"):
        lower(Schedule.from_text("F0 F0 B0\nF0 B0"))


def test_large_schedules():
    """2 p m operations, and a send and a receive for each of 2 (p - 1) m messages. Quadratic would take minutes."""
    assert sum(map(len, lower(gpipe(64, 256)))) == 2 * 64 * 256 + 2 * 2 * 63 * 256


# the replay


class MismatchError(Exception):
    """A rank took another tensor than it thinks."""


@dataclass(slots=True)
class Message:
    """One end of a message: the sender's or the receiver's."""

    action: Action | None  # what is sent; a receive does not say, for there are no tags
    done: bool = False
    got: Action | None = None


@dataclass(slots=True)
class Wires:
    """Messages between ranks, matched by order alone.

    own_streams: each ordered pair of ranks is a stream of its own. Otherwise a pair's two directions share one, and a
        message starts only when those before it in the stream, of either direction, are through.
    eager: a send is done when it is given away (gloo, small messages); otherwise when its receive takes it (NCCL).
    """

    own_streams: bool = True
    eager: bool = False
    ends: dict[tuple[int, object], deque[tuple[bool, Pair, Message]]] = field(
        default_factory=lambda: defaultdict(deque)
    )

    def start(self, rank: int, sends: bool, pair: Pair, message: Message) -> Message:
        stream: object = pair if self.own_streams else frozenset(pair)
        self.ends[rank, stream].append((sends, pair, message))
        message.done = sends and self.eager
        source, to = pair
        here, there = self.ends[source, stream], self.ends[to, stream]
        while here and there and here[0][1] == there[0][1] and here[0][0] != there[0][0]:
            (first_sends, _, one), (_, _, other) = here.popleft(), there.popleft()
            sent, received = (one, other) if first_sends else (other, one)
            received.got = sent.action
            sent.done = received.done = True
        return message

    def left(self) -> int:
        return sum(map(len, self.ends.values()))


@dataclass(slots=True)
class Replay:
    """Runs programs to their end. `ahead`: receives that a channel posts beyond the one that is needed."""

    programs: Sequence[Program]
    wires: Wires
    ahead: int
    blocking_sends: bool = False
    most_posted: int = 0
    moves: int = 0

    def run(self) -> Replay:
        running = {rank: self._rank(rank) for rank in range(len(self.programs))}
        while running:
            before = len(running), self.moves
            for rank in list(running):
                if next(running[rank], "end") == "end":
                    del running[rank]
            if (len(running), self.moves) == before:
                raise StuckError(f"ranks {sorted(running)} wait for each other")
        if self.wires.left():
            raise StuckError(f"{self.wires.left()} messages have no other end")
        return self

    def _rank(self, rank: int) -> Iterator[str]:
        """As ppedu.runtime.rank.interpreter does it: start sends and go on, wait for receives, wait for all sends at the end."""
        totals: dict[int, int] = defaultdict(int)
        for i in self.programs[rank]:
            if isinstance(i, Recv):
                totals[i.source] += 1
        posted: dict[int, list[Message]] = {source: [] for source in totals}
        taken = dict.fromkeys(totals, 0)
        sent: list[Message] = []

        def post(source: int, until: int) -> None:
            while len(posted[source]) < min(until, totals[source]):
                posted[source].append(self.wires.start(rank, False, (source, rank), Message(None)))
            waiting = len(posted[source]) - taken[source]
            self.most_posted = max(self.most_posted, waiting)

        for source in posted:
            post(source, self.ahead)
        have: set[Action] = set()
        for i in self.programs[rank]:
            self.moves += 1
            if isinstance(i, Send):
                sent.append(self.wires.start(rank, True, (rank, i.to), Message(i.action)))
                while self.blocking_sends and not sent[-1].done:
                    yield "send"
            elif isinstance(i, Recv):
                post(i.source, taken[i.source] + 1)
                message = posted[i.source][taken[i.source]]
                post(i.source, taken[i.source] + 1 + self.ahead)
                while not message.done:
                    yield "receive"
                taken[i.source] += 1
                if message.got != i.action:
                    raise MismatchError(f"rank {rank} took {message.got} for {i.action}")
                have.add(i.action)
        while not all(message.done for message in sent):
            yield "flush"
        self.moves += 1


NCCL = {"own_streams": True, "eager": False}
GLOO = {"own_streams": True, "eager": True}
TRANSPORTS = pytest.mark.parametrize("transport", [NCCL, GLOO], ids=["nccl", "gloo"])


def check_replay(programs: Sequence[Program], transport: dict[str, bool]) -> None:
    for ahead in (0, AHEAD):  # before a shape is known nothing is posted ahead
        replay = Replay(programs, Wires(**transport), ahead).run()
        assert replay.most_posted <= ahead + 1


@TRANSPORTS
@given(built())
def test_builders_always_finish(transport, schedule):
    check_replay(lower(schedule), transport)


@TRANSPORTS
@settings(max_examples=200)
@given(legal_schedules())
def test_any_legal_order_always_finishes(transport, schedule):
    check_replay(lower(schedule), transport)


@TRANSPORTS
@pytest.mark.parametrize("schedule", special(), ids=lambda s: s.name)
def test_published_and_odd_orders_finish(transport, schedule):
    check_replay(lower(schedule), transport)


# and it bites


def swapped_receives(programs: Sequence[Program], rank: int, first: int, second: int) -> list[Program]:
    broken: list[list[Instruction]] = [list(program) for program in programs]
    broken[rank][first], broken[rank][second] = broken[rank][second], broken[rank][first]
    return [tuple(program) for program in broken]


@TRANSPORTS
@settings(max_examples=200)
@given(legal_schedules(), st.randoms(use_true_random=False))
def test_swapped_receives_are_found(transport, schedule, rng):
    programs = lower(schedule)
    places = [
        (rank, a, b)
        for rank, program in enumerate(programs)
        for a, one in enumerate(program)
        for b, other in enumerate(program[:a])
        if isinstance(one, Recv) and isinstance(other, Recv) and one.source == other.source
    ]
    if places:
        with pytest.raises((MismatchError, StuckError)):
            Replay(swapped_receives(programs, *rng.choice(places)), Wires(**transport), AHEAD).run()


@TRANSPORTS
def test_receives_of_two_channels_that_are_swapped_hang(transport):
    """Rank 1 of 1F1B waits for a gradient before it takes the forward that this gradient comes from."""
    programs = lower(one_f_one_b(3, 3))
    middle = programs[1]
    gradient = next(k for k, i in enumerate(middle) if isinstance(i, Recv) and i.action.kind is B)
    broken = swapped_receives(programs, 1, 0, gradient)
    with pytest.raises(StuckError, match=r"ranks \[0, 1, 2\] wait for each other"):
        Replay(broken, Wires(**transport), AHEAD).run()


@TRANSPORTS
@pytest.mark.parametrize("lost", [Send, Recv])
def test_a_lost_end_is_found(transport, lost):
    programs = list(lower(one_f_one_b(2, 3)))
    rank = 0 if lost is Send else 1
    k = max(k for k, i in enumerate(programs[rank]) if isinstance(i, lost) and i.action.kind is F)
    programs[rank] = programs[rank][:k] + programs[rank][k + 1 :]
    with pytest.raises(StuckError):
        Replay(programs, Wires(**transport), 0).run()


def test_a_wrong_label_is_found():
    programs = list(lower(gpipe(2, 3)))
    k = next(k for k, i in enumerate(programs[1]) if isinstance(i, Recv))
    wrong = replace(programs[1][k], action=Action(0, F, 2))
    programs[1] = (*programs[1][:k], wrong, *programs[1][k + 1 :])
    with pytest.raises(MismatchError, match="rank 1 took 0F0 for 0F2"):
        Replay(programs, Wires(**NCCL), AHEAD).run()


def test_two_directions_on_one_stream_hang():
    """Why each ordered pair of ranks has a stream of its own: 1F1B hangs where both directions share one."""
    programs = lower(one_f_one_b(2, 4))
    with pytest.raises(StuckError):
        Replay(programs, Wires(own_streams=False), AHEAD).run()
    assert Replay(programs, Wires(own_streams=True), AHEAD).run()


def test_sends_that_block_hang():
    """Why a rank starts a send and goes on: 1F1B hangs where it waits, unless receives happen to be posted."""
    programs = lower(one_f_one_b(2, 4))
    with pytest.raises(StuckError):
        Replay(programs, Wires(**NCCL), ahead=0, blocking_sends=True).run()
