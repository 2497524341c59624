"""The same model, trained for real in four ways on p ranks, and what each rank keeps, computes and sends under each.

`one_device` trains as one process does; `ddp` splits the batch; `zero3` splits the batch and what is stored; `tp` splits
each layer; `pp` splits the sequence of layers. All do the same mathematics: `Way.difference` compares them.
"""

from __future__ import annotations

from ppedu.course.parallelisms.results import Comparison, RankShare, Way
from ppedu.course.parallelisms.ways import ddp, one_device, pp, tp, zero3

__all__ = ["Comparison", "RankShare", "Way", "ddp", "one_device", "pp", "tp", "zero3"]
