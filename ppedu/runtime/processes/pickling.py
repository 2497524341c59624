"""Functions, classes and models as bytes that another process can make them from, wherever they were defined."""

from __future__ import annotations

import io
import types
from typing import Any

import cloudpickle
import torch
from torch.storage import TypedStorage, UntypedStorage


def _reduced(code: types.CodeType) -> tuple[Any, ...]:
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _made, (make, arguments, code.co_filename)


def _made(make: Any, arguments: tuple[Any, ...], filename: str) -> types.CodeType:
    code: types.CodeType = make(*arguments)
    return code.replace(co_filename=filename)


def _reduced_storage(storage: UntypedStorage) -> Any:
    """The memory of tensors. torch would bring back a GPU's on the GPU that it was on, so that every rank would start the
    first one, besides its own."""
    if not _on_gpu(storage):
        return storage.__reduce_ex__(2)
    return _placed, _typed(storage.cpu(), torch.uint8).__reduce_ex__(
        2
    )  # torch writes untyped ones, but cannot read them


def _reduced_typed(storage: TypedStorage) -> Any:
    # Each tensor has a TypedStorage of its own, but tensors that share memory have one and the same untyped one: pickle
    # sees that, so that they share it where they are read, too.
    untyped = storage._untyped_storage
    return (_typed, (untyped, storage.dtype)) if _on_gpu(untyped) else storage.__reduce_ex__(2)


def _on_gpu(storage: UntypedStorage) -> bool:
    return storage.device.type == "cuda"


def _placed(make: Any, arguments: tuple[Any, ...]) -> Any:
    """On the GPU that this process has chosen (torch.cuda.set_device starts CUDA), or else in host memory."""
    storage = make(*arguments)._untyped_storage
    return storage.cuda() if torch.cuda.is_initialized() else storage


def _typed(storage: UntypedStorage, dtype: torch.dtype) -> TypedStorage:
    return TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, but code keeps the name of the file (or notebook cell) that it came from: tracebacks need it. And what
    is on a GPU is read onto the reader's own."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(
        {types.CodeType: _reduced, UntypedStorage: _reduced_storage, TypedStorage: _reduced_typed}
    )


def dumps(value: object) -> bytes:
    """The bytes, for pickle.loads. Raises whatever pickling raises for what cannot be sent (locks, open files).

    Tensors on a GPU are read onto the current GPU of the process that reads them, or onto its CPU where it has chosen none.
    """
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()
