"""Functions, classes and models as bytes that another process can make them from, wherever they were defined."""

from __future__ import annotations

import io
import types
from typing import Any

import cloudpickle


def _reduced(code: types.CodeType) -> tuple[Any, ...]:
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _made, (make, arguments, code.co_filename)


def _made(make: Any, arguments: tuple[Any, ...], filename: str) -> types.CodeType:
    code: types.CodeType = make(*arguments)
    return code.replace(co_filename=filename)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, but code keeps the name of the file (or notebook cell) that it came from: tracebacks need it."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({types.CodeType: _reduced})


def dumps(value: object) -> bytes:
    """The bytes, for pickle.loads. Raises whatever pickling raises for what cannot be sent (locks, open files)."""
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()
