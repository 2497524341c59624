"""The closed forms that papers give for a schedule's time and memory, each with the conditions under which it holds.

Letters: p ranks, m microbatches, v stages per rank, i a rank from 0 to p-1; F and B the time of one microbatch's forward
and backward on one p-th of the model, I and W the halves of B (gradient of the input, of the weights). Where a rank holds
v stages, a stage takes a v-th of that. All of them hold for stages of equal cost and messages that take no time; where one
of these or a form's own condition fails, simulate.

`makespan`, `idle_time`, `bubble_fraction`, ... are for GPipe and 1F1B, and `naive_...`; for every schedule by its name in
`ppedu.SCHEDULES` there are `idle`, `idle_in_span`, `makespan_of`, `peak_in_flight` and `peak_activations`, which raise
ValueError, with the condition, where no closed form is known. `IDLE`, `IDLE_IN_SPAN`, `SAVED` and `peak_formula` have the
formulas as text, and that text is what these functions work out (`evaluate`).

Sources: GPipe (Huang et al., 2019); PipeDream-Flush (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training",
2021); Megatron-LM (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
SC'21, section 2.2); Lamy-Poirier, "Breadth-First Pipeline Parallelism", 2022; Qi et al., "Zero Bubble Pipeline
Parallelism", ICLR'24, table 2, and "Pipeline Parallelism with Controllable Memory", 2024; DeepSeek-AI, DualPipe, README.
"""

from __future__ import annotations

from ppedu.theory.by_name import idle, idle_in_span, makespan_of
from ppedu.theory.forms import IDLE, IDLE_IN_SPAN, SAVED, Case, Form
from ppedu.theory.formula import evaluate, put_in
from ppedu.theory.memory import peak_activations, peak_formula, peak_in_flight
from ppedu.theory.one_stage import (
    bubble_fraction,
    bubble_over_ideal,
    idle_time,
    makespan,
    naive_makespan,
    naive_utilization,
    utilization,
)

__all__ = [
    "IDLE",
    "IDLE_IN_SPAN",
    "SAVED",
    "Case",
    "Form",
    "bubble_fraction",
    "bubble_over_ideal",
    "evaluate",
    "idle",
    "idle_in_span",
    "idle_time",
    "makespan",
    "makespan_of",
    "naive_makespan",
    "naive_utilization",
    "peak_activations",
    "peak_formula",
    "peak_in_flight",
    "put_in",
    "utilization",
]
