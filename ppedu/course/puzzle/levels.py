"""The puzzle's levels: from two operations on each of two ranks to 1F1B, to where 1F1B is not enough, and beyond it:
several stages on a rank, and a backward in two parts.

Letters: p ranks, m microbatches; F forward, B backward, I and W its halves (the input's and the weights' gradient);
in flight: forwards whose activations are still kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ppedu.core.checks import is_whole
from ppedu.core.costs import Costs
from ppedu.core.format import by_rank, quantity
from ppedu.core.operations import Kind, Overlap
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.course.puzzle.position import Position
from ppedu.schedules import gpipe, interleaved, naive, one_f_one_b, zb_h1, zb_v


@dataclass(frozen=True, slots=True)
class Level:
    """One task: what is given, what is asked for, and what helps.

    title, goal: a name, and the task in one sentence.
    p, m: ranks and microbatches. costs: what operations and messages take.
    target: the makespan to reach, in the unit of `costs`.
    reference: a schedule that reaches the target within the cap. Its figures stand beside the player's; it says which
        stages a rank holds, and whether a backward is B or I and W.
    cap: for each rank the most that it may hold in flight; None where memory does not count.
    hints: from a nudge to the answer, to be shown one after the other.
    own: the reference is an order of the player's: it stands there from the start, and is to be bettered.

    Raises ValueError for a reference of another size or with overlapped pairs, or a cap that is not one number a rank.
    """

    title: str
    goal: str
    p: int
    m: int
    target: float
    reference: Schedule
    costs: Costs = field(default_factory=Costs)
    cap: tuple[int, ...] | None = None
    hints: tuple[str, ...] = ()
    own: bool = False

    def __post_init__(self) -> None:
        r = self.reference
        if (r.num_ranks, r.num_microbatches) != (self.p, self.m):
            raise ValueError(
                f"level '{self.title}' has p={self.p} m={self.m}; its reference is {r.label}: give one of the same size"
            )
        kinds = r.kinds
        pairs = any(isinstance(entry, Overlap) for order in r.orders for entry in order)
        if r.chains != 1 or pairs or kinds not in ({Kind.F, Kind.B}, {Kind.F, Kind.I, Kind.W}):
            raise ValueError(
                f"level '{self.title}' asks for {r.label}, which has more than one chain, overlapped pairs, or B beside I "
                "and W: one operation is placed at a time, and a backward is always B or always I and W"
            )
        if self.cap is not None and len(self.cap) != self.p:
            raise ValueError(
                f"level '{self.title}' has {self.p} ranks: give a cap of one number a rank, not {self.cap}"
            )
        self.costs.check(r)

    @property
    def split(self) -> bool:
        """A backward is two operations, I and W."""
        return Kind.W in self.reference.kinds

    def start(self) -> Position:
        """The empty board, with the reference's stages on the reference's ranks."""
        return Position.start(self.p, self.m, self.reference.rank_of_stage, self.split)


_EAGER = Schedule.from_text(
    "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5\nF0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5\nF0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
    name="1F1B with more forwards ahead",
)

_SPLIT = Costs(forward=1, input_grad=1, weight_grad=1)

LEVELS: tuple[Level, ...] = (
    Level(
        "Down and up",
        "One microbatch goes down both ranks and comes up again: place its four operations, and end at 4.",
        2, 1, 4, naive(2, 1),
        hints=(
            "Each rank runs two operations: F0, and later B0.",
            "Rank 1's F0 needs rank 0's F0, and rank 0's B0 needs rank 1's B0.",
            "F0 B0 on both ranks. At any time one of the two is idle: half of their time is bubble.",
        ),
    ),
    Level(
        "Two at once",
        "Two microbatches: one after the other takes 8, so let the ranks work at the same time and end at 6.",
        2, 2, 6, gpipe(2, 2),
        hints=(
            "When rank 0 is done with F0, its B0 cannot start yet: rank 1 has not even begun.",
            "Let rank 0 run F1 while rank 1 runs F0.",
            "Rank 0: F0 F1 B0 B1. Rank 1 may run the same, or F0 B0 F1 B1: both end at 6.",
        ),
    ),
    Level(
        "All forwards first",
        "Four microbatches on three ranks: fill the pipeline and end at 12.",
        3, 4, 12, gpipe(3, 4),
        hints=(
            "A rank that runs forward after forward never waits once it has started.",
            "When rank 2 has run F0 to F3, it starts to send gradients back: B0 to B3.",
            "F0 F1 F2 F3 B0 B1 B2 B3 on every rank: this is GPipe. Each rank then holds 4 in flight.",
        ),
    ),
    Level(
        "Give memory back early",
        "The same board and the same 12, but now the ranks hold at most 3, 2 and 1 microbatches in flight.",
        3, 4, 12, one_f_one_b(3, 4), cap=(3, 2, 1),
        hints=(
            "A forward keeps its activations until the backward of the same microbatch has run on that rank. "
            "Rank 2 may keep one: after its F0 only B0 is left to it.",
            "Rank 2: F0 B0 F1 B1 F2 B2 F3 B3. Rank 1 fills its two places with F0 F1, then frees one with B0.",
            "Rank 1: F0 F1 B0 F2 B1 F3 B2 B3. Rank 0: F0 F1 F2 B0 F3 B1 B2 B3.",
        ),
    ),
    Level(
        "One forward, one backward",
        "Eight microbatches on four ranks: end at 22 and hold at most 4, 3, 2 and 1 in flight.",
        4, 8, 22, one_f_one_b(4, 8), cap=(4, 3, 2, 1),
        hints=(
            "Fill, alternate, drain: rank r starts with 3 - r forwards, then runs one forward and one backward in turn.",
            "Rank 3: F0 B0 F1 B1 and so on to F7 B7, without any forward ahead.",
            "Rank 0: F0 F1 F2, then F3 B0 F4 B1 F5 B2 F6 B3 F7 B4, then B5 B6 B7. This is 1F1B.",
        ),
    ),
    Level(
        "Backwards take twice as long",
        "A backward now takes 2: end at 33 within the same memory.",
        4, 8, 33, one_f_one_b(4, 8), Costs(forward=1, backward=2), cap=(4, 3, 2, 1),
        hints=(
            "An order holds no times. Does the one of the level before have to change?",
            "Rank 3 is busy for 24. The first microbatch takes 3 until it is there, and the last gradient 6 more to rank 0: "
            "no order ends before 33.",
            "Load the text of your 1F1B from the level before: the same order ends at 33.",
        ),
    ),
    Level(
        "Messages take time",
        "A message now takes 1, and 1F1B ends at 34: end at 28 and hold at most 5, 3 and 1 in flight.",
        3, 6, 28, _EAGER, Costs(forward=1, backward=2, transfer=1), cap=(5, 3, 1),
        hints=(
            "Under 1F1B rank 2 waits again and again for a forward. Send it more of them ahead, and it never waits once it has started.",
            "GPipe ends at 28 as well, but holds 6 on every rank. Take 1F1B and give it more forwards to start with.",
            "Rank 0 starts with 4 forwards before it takes turns, rank 1 with 2, rank 2 with none.",
        ),
    ),
    Level(
        "Two stages on each rank",
        "Rank 0 now holds stages 0 and 2, rank 1 stages 1 and 3, each half as large: run two microbatches through all four, and end at 10.",
        2, 2, 10, interleaved(2, 2, 2),
        hints=(
            "A microbatch visits each rank twice: 0F0, 1F0, 2F0, 3F0. While it is on rank 1, rank 0 runs 0F1.",
            "With one stage of twice the size on each rank, 1F1B ends at 12: its rank 1 starts at 2, here it can start at 1.",
            "Rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1. Rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1. This is interleaved 1F1B.",
        ),
    ),
    Level(
        "Interleaved, in little memory",
        "Four microbatches on the same stages: end at 18 and hold at most 5 and 3 in flight, counted stage by stage.",
        2, 4, 18, interleaved(2, 4, 2), cap=(5, 3),
        hints=(
            "Run two microbatches through a rank's first stage, the same two through its second, and then the next two.",
            "All forwards first, stage by stage, end at 18 as well, but hold 8 on each rank: this would be looped BFS.",
            "Rank 0 begins 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0, rank 1 begins 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1.",
        ),
    ),
    Level(
        "Weights can wait",
        "A backward is now two operations: I, for which the rank before waits, and W, for which nobody waits. End at 7.",
        2, 2, 7, zb_h1(2, 2), _SPLIT,
        hints=(
            "With I and W in one piece, 1F1B ends at 9: rank 0 waits while rank 1 computes gradients of its weights.",
            "Rank 1 runs I0 as soon as it can, and puts W0 off until nothing else is left.",
            "Rank 0: F0 F1 I0 W0 I1 W1. Rank 1: F0 I0 F1 I1 W0 W1.",
        ),
    ),
    Level(
        "Zero bubble in 1F1B's memory",
        "Four microbatches on three ranks: end at 14, and hold at most 3 in flight on every rank, as 1F1B's rank 0 does.",
        3, 4, 14, zb_h1(3, 4), _SPLIT, cap=(3, 3, 3),
        hints=(
            "1F1B ends at 18 here. Activations are kept until W, so each W that is put off takes room.",
            "Take 1F1B, with I in place of B. Rank r then puts each W off by r microbatches: W0 comes after I0, I1 or I2.",
            "Rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3. Rank 1: F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3. "
            "Rank 2: F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3. This is ZB-H1.",
        ),
    ),
    Level(
        "Down and up again",
        "Stages of half the size go down the ranks and up again, so rank 0 holds stages 0 and 3: end at 19 and hold at most 4 on each rank.",
        2, 3, 19, zb_v(2, 3), _SPLIT, cap=(4, 4),
        hints=(
            "The first gradient is ready on rank 0, where the microbatch began: 3I0 needs its own 3F0 and nothing else.",
            "Rank 1 has 18 to run and can start at 1: it must not wait any more. A W fills each wait.",
            "Rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2. "
            "Rank 1: 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2. This is ZB-V.",
        ),
    ),
)  # fmt: skip
"""Level n is LEVELS[n - 1]."""


def level_of(level: int | Level | Schedule | str, costs: Costs | None = None) -> Level:
    """A level by its number, counted from 1; a Level as it is; an order of one's own, or its text, by `own_level`.

    >>> level_of(2).title
    'Two at once'
    """
    if isinstance(level, Schedule) or (isinstance(level, str) and not level.strip().isdecimal()):
        return own_level(level, costs or Costs())
    if costs is not None:
        raise ValueError(f"a level has its costs: give some for an order of your own, not for level={level!r:.80}")
    if isinstance(level, Level):
        return level
    if not is_whole(level) or not 1 <= int(level) <= len(LEVELS):
        raise ValueError(
            f"there are levels 1 to {len(LEVELS)}, or a Level, a Schedule or its text of your own: level={level!r}"
        )
    return LEVELS[int(level) - 1]


def own_level(order: Schedule | str, costs: Costs) -> Level:
    """To better an order of one's own: on its ranks, microbatches and stages, under these costs.

    >>> own_level("F0 B0 F1 B1\\nF0 B0 F1 B1", Costs()).goal
    'Your order ends at 8 and holds 1 1 in flight: end sooner and hold no more, or hold less and end no later.'

    Raises ScheduleError for an order that cannot run, and ValueError as Level does.
    """
    if isinstance(order, str):
        order = Schedule.from_csv(order) if "," in order else Schedule.from_text(order)
    schedule = replace(order, name="your order") if order.name == "custom" else order
    end, held = simulate(schedule, costs).makespan, schedule.peak_in_flight
    goal = (
        f"{schedule.name[0].upper()}{schedule.name[1:]} ends at {quantity(end, costs.unit, digits=6)} and holds "
        f"{by_rank(held)} in flight: end sooner and hold no more, or hold less and end no later."
    )
    p, m = schedule.num_ranks, schedule.num_microbatches
    return Level(f"Better than {schedule.name}", goal, p, m, end, schedule, costs, held, own=True)
