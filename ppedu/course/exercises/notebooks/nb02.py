"""What notebook 02 asks: why p devices that hand one batch on are as slow as one."""

from __future__ import annotations

from ppedu import theory
from ppedu.core.costs import Costs
from ppedu.core.simulate import simulate
from ppedu.course.exercises.ask import Exercise, Question, Wrong
from ppedu.course.exercises.forms import Number
from ppedu.schedules import naive


def _wait(rank: int, p: int, forward: float, backward: float) -> float:
    """How long a rank waits between its F and its B: read from the simulated spans."""
    down, up = simulate(naive(p), Costs(forward, backward)).spans_of(rank)
    return up.start - down.end


def _speed_up(p: int, forward: float, backward: float, transfer: float) -> float:
    """One device's time over that of p ranks, both simulated: the one device runs the p stages as one."""
    alone = simulate(naive(1), Costs(p * forward, p * backward))
    return alone.makespan / simulate(naive(p), Costs(forward, backward, transfer=transfer)).makespan


QUESTIONS = (
    Question(
        "makespan of naive",
        form=Number("units"),
        answer=lambda: simulate(naive(p=4)).makespan,
        because="The batch goes down through four forwards and comes back up through four backwards, one after the other. "
        "One device that ran all of it would need 8 as well.",
        wrong=(
            Wrong(
                "four ranks are four times faster",
                2,
                "2 is the work of 8 units shared out over 4 ranks that all work at once. But rank 1's forward needs what rank 0's "
                "forward computes, and there is one batch only: at no time can two ranks work.",
            ),
            Wrong("the step ends with the forward", 4, "4 is the way down. The gradient has the way up still to go."),
            Wrong(
                "the last rank turns round for free",
                7,
                "7 leaves one operation out: the last rank runs both, its forward and then its backward.",
            ),
            Wrong(
                "each rank needs all of the time",
                32,
                "32 counts each of the 8 operations on all 4 ranks. A rank runs its own stage only: one F and one B.",
            ),
        ),
    ),
    Question(
        "busy share at p = 8",
        form=Number("per cent"),
        answer=lambda: 100 * simulate(naive(p=8)).utilization,
        because="Of eight ranks one works at any time, so each works an eighth of the time: twice as many devices, half as busy.",
        wrong=(
            Wrong(
                "a fraction for per cent", 0.125, "As a fraction you are right: in per cent it is 100 times as much."
            ),
            Wrong(
                "utilization does not depend on p",
                25,
                "25 % was four ranks that take turns. Now there are eight of them, and still only one batch to work on.",
            ),
            Wrong("bubble for utilization", 87.5, "87.5 % is what each rank waits. The rest is what it works."),
            Wrong(
                "F and B count apart",
                6.25,
                "6.25 % is one operation of 16. But each rank runs two of them, its F and its B.",
            ),
            Wrong(
                "more ranks, more at work",
                50,
                "50 % is two ranks that take turns. More ranks do not fill the time: each one waits for all the others.",
            ),
        ),
    ),
    Question(
        "makespan of naive with messages",
        form=Number("units"),
        answer=lambda: simulate(naive(p=4), Costs(1, 1, transfer=0.5)).makespan,
        because="Three cuts are crossed on the way down and three on the way up: 8 units of work and 6 messages of half a unit, "
        "none of which anything hides. One device sends none, and is done at 8.",
        wrong=(
            Wrong(
                "messages cost nothing",
                8,
                "8 is the work alone. While a message is on its way, nobody works: there is no other batch to work on.",
            ),
            Wrong(
                "messages go down only",
                9.5,
                "9.5 counts the three activations that go down. Three gradients come back up.",
            ),
            Wrong(
                "one message an operation",
                12,
                "12 counts a message for each of the 8 operations. Between rank 3's F and its B "
                "nothing travels, and nothing leaves after rank 0's B.",
            ),
            Wrong(
                "a message passes all cuts at once",
                9,
                "9 counts one message down and one up. Each of the three cuts is crossed "
                "by a message of its own, and these come one after the other.",
            ),
        ),
    ),
)

EXERCISES = (
    Exercise(
        "utilization of naive",
        form=Number(),
        cases=(
            {"p": 4, "forward": 1, "backward": 1},
            {"p": 4, "forward": 1, "backward": 2},
            {"p": 8, "forward": 3, "backward": 1},
            {"p": 3, "forward": 0.02, "backward": 0.05},
            {"p": 1, "forward": 1, "backward": 2},
        ),
        right=lambda p, forward, backward: theory.naive_utilization(p),
        nudge="Utilization is what a rank works over the makespan. How long does one rank work? How long is the chain of all F "
        "and all B?",
        because="F and B cancel: whatever they are, the ranks take turns. So no device is too fast or too slow for this: only "
        "the order can mend it.",
        wrong=(
            Wrong(
                "bubble for utilization",
                lambda p, forward, backward: 1 - 1 / p,
                "{got} is the share of the time in which a rank waits, the bubble fraction. Utilization is the other share.",
            ),
            Wrong(
                "devices always work",
                lambda p, forward, backward: 1,
                "1 would mean that each rank works from the first F to the last B. With p={p}, which rank works while the first F "
                "runs on rank 0?",
            ),
            Wrong(
                "only the forward is work",
                lambda p, forward, backward: forward / (p * (forward + backward)),
                "{got} counts a rank's F as work, and its B as waiting. It computes in both.",
            ),
            Wrong(
                "F and B count apart",
                lambda p, forward, backward: 1 / (2 * p),
                "{got} is one operation of 2p. A rank runs two of them, an F and a B.",
            ),
            Wrong(
                "down and up overlap",
                lambda p, forward, backward: (forward + backward) / (p * max(forward, backward)),
                "{got} lets forwards and backwards run at the same time. But the first backward needs the loss, which is there after "
                "the last forward.",
            ),
            Wrong(
                "the ranks' work is added up",
                lambda p, forward, backward: p,
                "{got} counts the makespan p times over. Utilization is a share of all the ranks' time, so it is never above 1.",
            ),
        ),
    ),
    Exercise(
        "wait between F and B",
        form=Number(),
        cases=(
            {"rank": 0, "p": 4, "forward": 1, "backward": 1},
            {"rank": 1, "p": 4, "forward": 1, "backward": 2},
            {"rank": 3, "p": 4, "forward": 1, "backward": 1},
            {"rank": 2, "p": 8, "forward": 0.5, "backward": 2},
            {"rank": 0, "p": 1, "forward": 1, "backward": 1},
        ),
        right=_wait,
        nudge="Which ranks are still to be passed before the gradient is back? Each of them runs one F on the way down and one B on the "
        "way up.",
        because="The earlier the rank, the longer it waits, with its activations in memory. This gap is the room that the next "
        "notebook fills with other work.",
        wrong=(
            Wrong(
                "the gradient comes back at once",
                lambda rank, p, forward, backward: (p - 1 - rank) * forward,
                "rank {rank} does not only wait for the forwards of the ranks after it: their backwards run before its own, too.",
            ),
            Wrong(
                "only backwards are waited for",
                lambda rank, p, forward, backward: (p - 1 - rank) * backward,
                "{got} counts the backwards of the ranks after rank {rank}. Before the first of them runs, the batch has to get "
                "down there: their forwards come first.",
            ),
            Wrong(
                "every rank waits alike",
                lambda rank, p, forward, backward: (p - 1) * (forward + backward),
                "{got} is all that rank {rank} waits: before its F, between F and B, and after its B. Only the middle is asked for. "
                "It differs from rank to rank.",
            ),
            Wrong(
                "a rank waits for itself",
                lambda rank, p, forward, backward: (p - rank) * (forward + backward),
                "{got} counts one rank too many: rank {rank} works in its own F and B, it does not wait for them.",
            ),
            Wrong(
                "late ranks wait longest",
                lambda rank, p, forward, backward: rank * (forward + backward),
                "{got} is what rank {rank} waits before its F and after its B. The last rank, p - 1, waits for nothing between "
                "its F and its B: it has the loss at hand.",
            ),
        ),
    ),
    Exercise(
        "speed-up of naive",
        form=Number(),
        cases=(
            {"p": 4, "forward": 1, "backward": 1, "transfer": 0.5},
            {"p": 4, "forward": 1, "backward": 1, "transfer": 0},
            {"p": 8, "forward": 1, "backward": 2, "transfer": 0.25},
            {"p": 2, "forward": 3, "backward": 1, "transfer": 1},
            {"p": 1, "forward": 1, "backward": 1, "transfer": 1},
        ),
        right=_speed_up,
        nudge="Take one device's time, p (F + B), over that of the p ranks: the same work, and all the messages that nothing hides.",
        because="It is 1 at best: naive is never faster than one device, and each message makes it slower.",
        wrong=(
            Wrong(
                "p devices are p times faster",
                lambda p, forward, backward, transfer: p,
                "{got} would mean that all p ranks work all the time. One does, at any time.",
            ),
            Wrong(
                "messages cost nothing",
                lambda p, forward, backward, transfer: 1,
                "{got} is right where messages are free. Here each takes {transfer}, and no rank has work to do meanwhile.",
            ),
            Wrong(
                "messages go down only",
                lambda p, forward, backward, transfer: (
                    p * (forward + backward) / (p * (forward + backward) + (p - 1) * transfer)
                ),
                "{got} counts the activations that go down. The gradients that come back up are messages, too.",
            ),
            Wrong(
                "one message an operation",
                lambda p, forward, backward, transfer: (
                    p * (forward + backward) / (p * (forward + backward) + 2 * p * transfer)
                ),
                "{got} counts a message for each of the 2p operations. A message crosses a cut between two stages: how many cuts do "
                "{p} stages have, and how often is each one crossed?",
            ),
            Wrong(
                "upside down",
                lambda p, forward, backward, transfer: 1 + 2 * (p - 1) * transfer / (p * (forward + backward)),
                "{got} is how many times as long the p ranks take. A speed-up is the other way round: the old time over the new one.",
            ),
        ),
    ),
)
