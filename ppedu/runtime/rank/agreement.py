"""What the ranks of a run agree on in each step: the size of its batch, and whether the loss is still a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ppedu.runtime.model.batches import batch_of, check_batch, microbatch_sizes
from ppedu.runtime.rank.channels import Form
from ppedu.runtime.rank.group import Group
from ppedu.runtime.rank.heartbeat import ANNOUNCING, AWAITING_BATCH, AWAITING_LOSS, READING, Heartbeat
from ppedu.runtime.rank.job import Work


@dataclass(frozen=True, slots=True)
class StepBatch:
    """A step's batch as one rank has it, cut into microbatches. inputs: on first ranks only. targets: on last ones only.

    sample: which shape the samples have, by number: sequences may be longer in one step than in another.
    """

    sizes: Sequence[int] = ()
    sample: int = 0
    inputs: Sequence[Tensor] = ()
    targets: Sequence[Tensor] = ()

    @property
    def forms(self) -> list[Form]:
        return [(size, self.sample) for size in self.sizes]


class Agreement:
    """One rank's part in what all agree on. first, last: whether it holds an end of a chain."""

    def __init__(self, work: Work, group: Group, heartbeat: Heartbeat, first: bool, last: bool) -> None:
        self.work, self.group, self.heartbeat, self.first, self.last = work, group, heartbeat, first, last
        schedule = work.job.schedule
        n, rank_of = schedule.chain_length, schedule.rank_of_stage
        self.m, self.first_rank, self.last_ranks = (
            schedule.num_microbatches,
            rank_of[0],
            sorted(set(rank_of[n - 1 :: n])),
        )
        self.others = [rank for rank in range(group.size) if rank != group.rank]
        self.samples: dict[tuple[torch.Size, torch.dtype], int] = {}  # the shapes of samples so far

    def batch(self, step: int) -> StepBatch:
        """Cut this step's batch on the ranks at the ends of a chain. The first rank tells all others its size and shape."""
        count, sample = 0, 0
        inputs: Sequence[Tensor] = ()
        targets: Sequence[Tensor] = ()
        if self.work.data is not None:
            self.heartbeat.put(step, READING)
            x, y = batch_of(self.work.data, step)
            check_batch(x, y, self.m)
            count = len(x)
            if self.first:
                inputs = x.to(self.group.device).tensor_split(self.m)
                sample = self.samples.setdefault((x.shape[1:], x.dtype), len(self.samples))
            if self.last:
                targets = y.to(self.group.device).tensor_split(self.m)
        if self.group.rank == self.first_rank:
            self.heartbeat.put(step, ANNOUNCING)
            for other in self.others:
                self.group.send([count, sample], other).wait()
        else:
            self.heartbeat.put(step, AWAITING_BATCH)
            agreed, sample = map(int, self.group.receive(2, self.first_rank))
            if self.work.data is not None and count != agreed:
                raise ValueError(
                    f"data gave the first rank {agreed} samples and the last rank {count} in step {step}. "
                    "It is called on both, so it must return the same batch for the same step (seed it with the step)"
                )
            count = agreed
        return StepBatch(microbatch_sizes(count, self.m), sample, inputs, targets)

    def stop(self, step: int, not_finite: bool) -> bool:
        """The last ranks, which alone know the loss, tell the others before anyone's optimizer moves a weight. They knew
        before their last backward began, so this waits for little."""
        self.heartbeat.put(step, AWAITING_LOSS)
        sent = [self.group.send([not_finite], other) for other in self.others] if self.last else []
        told = [self.group.receive(1, source)[0] for source in self.last_ranks if source != self.group.rank]
        for work in sent:
            work.wait()
        return not_finite or any(told)
