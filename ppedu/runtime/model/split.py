"""Layers -> stages: which consecutive layers run as one piece.

Letters: p stages. A stage holds the layers of the model themselves, not copies of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, pairwise
from typing import Any, TypeAlias

from torch import Tensor, nn

from ppedu.runtime.model.balance import balance, check_stages
from ppedu.runtime.model.layer_times import Sample, layer_times

__all__ = ["ModelLike", "balance", "layer_times", "layers_of", "split", "stage_parameter_names", "stages_of"]

ModelLike: TypeAlias = nn.Module | Sequence[nn.Module]
"""A sequence of layers: nn.Sequential, nn.ModuleList, a list or tuple of modules, or what `split` returned."""


class StageLayers(nn.Sequential):
    """The layers of one stage. A type of its own, so that a split model can be told from a list of layers."""


def split(
    model: ModelLike,
    p: int,
    by: str = "layers",
    sample: Sample | None = None,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
) -> tuple[nn.Sequential, ...]:
    """Cut a model into `p` stages of consecutive layers, of at least one layer each. The stages hold the same layers.

    by: "layers" makes the numbers of layers as even as can be; where some are left over, the last stages take one more
    each (under 1F1B they keep fewer activations). "parameters" makes the stage with the most parameters as small as
    can be, "time" the one that takes longest: see `balance` for how, `layer_times` for how time is measured.
    sample, loss_fn: what "time" measures on: the inputs of one microbatch, or (inputs, targets) and the loss.

    Raises ValueError for p < 1, more stages than layers, an unknown `by`, no sample to take the time of, one layer at
    two places and weights that two stages share; TypeError for a model that is no sequence of layers.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> [len(stage) for stage in split(model, p=2)]
    [1, 2]
    >>> [len(stage) for stage in split(model, p=2, by="parameters")]
    [1, 2]
    """
    layers = layers_of(model)
    unpacked = sum(len(layer) if isinstance(layer, nn.Sequential) else 1 for layer in layers)
    hint = " (a sequence inside the model is one layer: unpack it with *)"
    check_stages(p, len(layers), hint if isinstance(p, int) and len(layers) < p <= unpacked else "")
    edges = (0, *accumulate(balance(_costs(layers, by, sample, loss_fn), p)))
    stages = tuple(StageLayers(*layers[start:end]) for start, end in pairwise(edges))
    _refuse_shared(model, stages)
    return stages


def _costs(
    layers: list[nn.Module], by: str, sample: Sample | None, loss_fn: Callable[[Any, Any], Tensor] | None
) -> Sequence[float]:
    if by == "layers":
        return [1] * len(layers)
    if by == "parameters":
        return [sum(weight.numel() for weight in layer.parameters()) for layer in layers]
    if by != "time":
        raise ValueError(f"a model is split by 'layers', 'parameters' or 'time': by={by!r}")
    if sample is None:
        raise ValueError(
            "split(by='time') measures each layer: give sample=, the inputs of one microbatch, "
            "or split by 'layers' or 'parameters'"
        )
    return layer_times(layers, sample, loss_fn)


def stages_of(model: ModelLike, p: int) -> tuple[nn.Sequential, ...]:
    """What `split` returned, as it is; anything else split by layers. Raises as `split` does, and where p differs.

    >>> stages = split([nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)], p=2, by="parameters")
    >>> all(a is b for a, b in zip(stages, stages_of(stages, p=2)))
    True
    """
    stages = _stages(model)
    if not stages:
        return split(model, p)
    if len(stages) != p:
        raise ValueError(f"the model is split into {len(stages)} stages where {p} are needed: split it with p={p}")
    _refuse_shared(model, stages)
    return stages


def layers_of(model: ModelLike) -> list[nn.Module]:
    """The layers of a model that is a sequence of them (see ModelLike); of what `split` returned, all stages' layers.

    Raises TypeError for anything else, ValueError where one layer with weights or buffers stands at two places.

    >>> len(layers_of(split(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), p=2)))
    3
    """
    layers = [layer for _, layer in _named_layers(model)]
    first: dict[int, int] = {}
    for index, layer in enumerate(layers):
        other = first.setdefault(id(layer), index)
        if other != index and any(True for _ in _tensors(layer)):  # one nn.Tanh() for all is fine
            raise ValueError(
                f"each place in the model has its own layer, but layers {other} and {index} are the same "
                f"{type(layer).__name__}, whose weights two ranks would train apart. Put copy.deepcopy(layer) in one "
                "of them"
            )
    return layers


def stage_parameter_names(model: ModelLike, stages: Sequence[nn.Module]) -> list[dict[str, str]]:
    """For each stage the name there -> the name in the model, of every parameter and buffer.

    Names in the model are those of model.named_parameters() and model.named_buffers(), or, where the model is a list of
    layers or what `split` returned, the layer's number and the name in the layer, "5.weight". What two layers share
    has one name, the first. Raises ValueError for stages that are not this model's.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> stage_parameter_names(model, split(model, p=2))[1]
    {'0.weight': '1.weight', '0.bias': '1.bias'}
    """
    names: dict[int, str] = {}
    for prefix, layer in _named_layers(model):
        for name, tensor in _tensors(layer):
            names.setdefault(id(tensor), f"{prefix}.{name}")
    for number, stage in enumerate(stages):
        for name, tensor in _tensors(stage):
            if id(tensor) not in names:
                raise ValueError(f"stage {number} holds '{name}', which this model does not: split this model itself")
    return [{name: names[id(tensor)] for name, tensor in _tensors(stage)} for stage in stages]


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(module.named_parameters(), module.named_buffers())


def _refuse_shared(model: ModelLike, stages: Iterable[nn.Sequential]) -> None:
    """Shared buffers pass: tables that all blocks read are common, and equal on all ranks."""
    layers = iter(_named_layers(model))
    seen: dict[int, tuple[int, str]] = {}
    for number, stage in enumerate(stages):
        for prefix, layer in islice(layers, len(stage)):
            for name, weight in layer.named_parameters():
                first, other = seen.setdefault(id(weight), (number, f"{prefix}.{name}"))
                if first != number:
                    raise ValueError(
                        f"two stages cannot share weights, which each rank would train apart: '{other}' of stage "
                        f"{first} and '{prefix}.{name}' of stage {number} are one Parameter. Give one of them a "
                        "Parameter of its own, or split so that one stage holds both"
                    )


def _stages(model: object) -> tuple[StageLayers, ...]:
    """The stages of what `split` returned; () for anything else."""
    parts = tuple(model) if isinstance(model, list | tuple) else ()
    stages = tuple(part for part in parts if isinstance(part, StageLayers))
    return stages if len(stages) == len(parts) else ()


def _named_layers(model: ModelLike) -> list[tuple[str, nn.Module]]:
    """(name in the model, layer), in order. Unlike named_children() it keeps a layer that stands twice."""
    if isinstance(model, nn.Sequential) and type(model).forward is not nn.Sequential.forward:
        raise TypeError(
            f"{type(model).__name__} is an nn.Sequential with a forward of its own, which stages would not run. "
            "Move what it does into its layers, or give list(model) if they are all there is"
        )
    if isinstance(model, nn.Sequential | nn.ModuleList):
        return list(zip(model._modules, model, strict=True))
    if not isinstance(model, list | tuple):
        raise TypeError(_no_sequence(model))
    layers: list[object] = list(chain.from_iterable(_stages(model)) if _stages(model) else model)
    found = []
    for index, layer in enumerate(layers):
        if not isinstance(layer, nn.Module):
            raise TypeError(
                f"a layer is an nn.Module, but layer {index} is of type {type(layer).__name__}. "
                "Call a function in the forward of a module"
            )
        found.append((str(index), layer))
    return found


def _no_sequence(model: object) -> str:
    children = model.named_children() if isinstance(model, nn.Module) else ()
    lists = [f".{name} has {len(c)}" for name, c in children if isinstance(c, nn.Sequential | nn.ModuleList)]
    return (
        "a model is a sequence of layers, each fed with the one tensor that the layer before it returned, "
        f"but this is of type {type(model).__name__}. Give nn.Sequential(...), nn.ModuleList or a list of layers"
        + (f" ({', '.join(lists)})" if lists else "")
    )
