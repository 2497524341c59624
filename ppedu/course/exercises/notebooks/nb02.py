"""What notebook 02 asks: why p devices that hand one batch on are as slow as one.

Letters in wrong answers: rank r of p; f, b and t are what a forward, a backward and a message take.
"""

from __future__ import annotations

from ppedu import theory
from ppedu.core.costs import Costs
from ppedu.core.simulate import simulate
from ppedu.course.exercises.ask import Exercise, Question, cases, idea
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
            idea("four ranks are four times faster", 2)("""
                2 is the work of 8 units shared out over 4 ranks that all work at once. But rank 1's forward needs what
                rank 0's forward computes, and there is one batch only: at no time can two ranks work."""),
            idea("the step ends with the forward", 4)("4 is the way down. The gradient has the way up still to go."),
            idea("the last rank turns round for free", 7)("""
                7 leaves one operation out: the last rank runs both, its forward and then its backward."""),
            idea("each rank needs all of the time", 32)("""
                32 counts each of the 8 operations on all 4 ranks. A rank runs its own stage only: one F and one B."""),
        ),
    ),
    Question(
        "busy share at p = 8",
        form=Number("per cent"),
        answer=lambda: 100 * simulate(naive(p=8)).utilization,
        because="Of eight ranks one works at any time, so each works an eighth of the time: twice as many devices, half as busy.",
        wrong=(
            idea("a fraction for per cent", 0.125)("As a fraction you are right: in per cent it is 100 times as much."),
            idea("utilization does not depend on p", 25)("""
                25 % was four ranks that take turns. Now there are eight of them, and still only one batch to work on."""),
            idea("bubble for utilization", 87.5)("87.5 % is what each rank waits. The rest is what it works."),
            idea("F and B count apart", 6.25)("""
                6.25 % is one operation of 16. But each rank runs two of them, its F and its B."""),
            idea("more ranks, more at work", 50)("""
                50 % is two ranks that take turns. More ranks do not fill the time: each one waits for all the others."""),
        ),
    ),
    Question(
        "makespan of naive with messages",
        form=Number("units"),
        answer=lambda: simulate(naive(p=4), Costs(1, 1, transfer=0.5)).makespan,
        because="Three cuts are crossed on the way down and three on the way up: 8 units of work and 6 messages of half a unit, "
        "none of which anything hides. One device sends none, and is done at 8.",
        wrong=(
            idea("messages cost nothing", 8)("""
                8 is the work alone. While a message is on its way, nobody works: there is no other batch to work on."""),
            idea("messages go down only", 9.5)("""
                9.5 counts the three activations that go down. Three gradients come back up."""),
            idea("one message an operation", 12)("""
                12 counts a message for each of the 8 operations. Between rank 3's F and its B nothing travels, and
                nothing leaves after rank 0's B."""),
            idea("a message passes all cuts at once", 9)("""
                9 counts one message down and one up. Each of the three cuts is crossed by a message of its own, and
                these come one after the other."""),
        ),
    ),
)

EXERCISES = (
    Exercise(
        "utilization of naive",
        form=Number(),
        cases=cases("p forward backward", (4, 1, 1), (4, 1, 2), (8, 3, 1), (3, 0.02, 0.05), (1, 1, 2)),
        right=lambda p, forward, backward: theory.naive_utilization(p),
        nudge="Utilization is what a rank works over the makespan. How long does one rank work? How long is the chain of all F "
        "and all B?",
        because="F and B cancel: whatever they are, the ranks take turns. So no device is too fast or too slow for this: only "
        "the order can mend it.",
        wrong=(
            idea("bubble for utilization", lambda p, f, b: 1 - 1 / p)("""
                {got} is the share of the time in which a rank waits, the bubble fraction. Utilization is the other
                share."""),
            idea("devices always work", lambda p, f, b: 1)("""
                1 would mean that each rank works from the first F to the last B. With p={p}, which rank works while the
                first F runs on rank 0?"""),
            idea("only the forward is work", lambda p, f, b: f / (p * (f + b)))("""
                {got} counts a rank's F as work, and its B as waiting. It computes in both."""),
            idea("F and B count apart", lambda p, f, b: 1 / (2 * p))("""
                {got} is one operation of 2p. A rank runs two of them, an F and a B."""),
            idea("down and up overlap", lambda p, f, b: (f + b) / (p * max(f, b)))("""
                {got} lets forwards and backwards run at the same time. But the first backward needs the loss, which is
                there after the last forward."""),
            idea("the ranks' work is added up", lambda p, f, b: p)("""
                {got} counts the makespan p times over. Utilization is a share of all the ranks' time, so it is never
                above 1."""),
        ),
    ),
    Exercise(
        "wait between F and B",
        form=Number(),
        cases=cases("rank p forward backward", (0, 4, 1, 1), (1, 4, 1, 2), (3, 4, 1, 1), (2, 8, 0.5, 2), (0, 1, 1, 1)),
        right=_wait,
        nudge="Which ranks are still to be passed before the gradient is back? Each of them runs one F on the way down and one B on the "
        "way up.",
        because="The earlier the rank, the longer it waits, with its activations in memory. This gap is the room that the next "
        "notebook fills with other work.",
        wrong=(
            idea("the gradient comes back at once", lambda r, p, f, b: (p - 1 - r) * f)("""
                rank {rank} does not only wait for the forwards of the ranks after it: their backwards run before its
                own, too."""),
            idea("only backwards are waited for", lambda r, p, f, b: (p - 1 - r) * b)("""
                {got} counts the backwards of the ranks after rank {rank}. Before the first of them runs, the batch has
                to get down there: their forwards come first."""),
            idea("every rank waits alike", lambda r, p, f, b: (p - 1) * (f + b))("""
                {got} is all that rank {rank} waits: before its F, between F and B, and after its B. Only the middle is
                asked for. It differs from rank to rank."""),
            idea("a rank waits for itself", lambda r, p, f, b: (p - r) * (f + b))("""
                {got} counts one rank too many: rank {rank} works in its own F and B, it does not wait for them."""),
            idea("late ranks wait longest", lambda r, p, f, b: r * (f + b))("""
                {got} is what rank {rank} waits before its F and after its B. The last rank, p - 1, waits for nothing
                between its F and its B: it has the loss at hand."""),
        ),
    ),
    Exercise(
        "speed-up of naive",
        form=Number(),
        cases=cases(
            "p forward backward transfer", (4, 1, 1, 0.5), (4, 1, 1, 0), (8, 1, 2, 0.25), (2, 3, 1, 1), (1, 1, 1, 1)
        ),
        right=_speed_up,
        nudge="Take one device's time, p (F + B), over that of the p ranks: the same work, and all the messages that nothing hides.",
        because="It is 1 at best: naive is never faster than one device, and each message makes it slower.",
        wrong=(
            idea("p devices are p times faster", lambda p, f, b, t: p)("""
                {got} would mean that all p ranks work all the time. One does, at any time."""),
            idea("messages cost nothing", lambda p, f, b, t: 1)("""
                {got} is right where messages are free. Here each takes {transfer}, and no rank has work to do meanwhile."""),
            idea("messages go down only", lambda p, f, b, t: p * (f + b) / (p * (f + b) + (p - 1) * t))("""
                {got} counts the activations that go down. The gradients that come back up are messages, too."""),
            idea("one message an operation", lambda p, f, b, t: p * (f + b) / (p * (f + b) + 2 * p * t))("""
                {got} counts a message for each of the 2p operations. A message crosses a cut between two stages: how
                many cuts do {p} stages have, and how often is each one crossed?"""),
            idea("upside down", lambda p, f, b, t: 1 + 2 * (p - 1) * t / (p * (f + b)))("""
                {got} is how many times as long the p ranks take. A speed-up is the other way round: the old time over
                the new one."""),
        ),
    ),
)
