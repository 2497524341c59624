"""Layers, losses and data that go wrong, for the tests of faults. Ranks import this module by name, so it stays light."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 8
Act = Callable[[], object]


def sgd(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.1)


# what goes wrong


def boom() -> None:
    raise RuntimeError("boom")


def leave() -> None:
    raise SystemExit(7)


def because() -> None:
    try:
        {}["key"]
    except KeyError as error:
        raise ValueError("no such key") from error


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_at_once() -> None:
    os._exit(3)


def crash() -> None:
    ctypes.string_at(0)


def sleep() -> None:
    time.sleep(1000)


def loop() -> None:
    while True:
        pass


def hold_the_lock() -> None:
    ctypes.PyDLL(None).sleep(1000)  # C code that does not let go of the interpreter


# where it goes wrong


class InForward(nn.Module):
    """A linear layer that acts in its forward, from the call with this number on."""

    def __init__(self, act: Act, call: int = 0) -> None:
        super().__init__()
        self.act, self.call, self.calls = act, call, 0
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.calls >= self.call:
            self.act()
        self.calls += 1
        return self.linear(x)


class _Acts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, act: Act) -> Tensor:
        ctx.act = act
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.act()
        return gradient, None


class InBackward(nn.Module):
    """A linear layer that acts in its backward: in a custom Function, or in a hook of a tensor."""

    def __init__(self, act: Act, hook: bool = False) -> None:
        super().__init__()
        self.act, self.hook = act, hook
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if not self.hook:
            return _Acts.apply(y, self.act)
        y.register_hook(lambda gradient: self.act())
        return y


class AtArrival(nn.Module):
    """A linear layer that acts when it is unpickled in another process: while its rank starts up."""

    def __init__(self, act: Act) -> None:
        super().__init__()
        self.act, self.home = act, os.getpid()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.getpid() != self.home:
            self.act()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def in_a_thread(act: Act, seconds: float) -> Act:
    """Act later, whatever the rank does then."""

    def start() -> None:
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.start()

    return start


def nap() -> None:
    time.sleep(2)


def chatter() -> None:
    """Print all the time."""

    def talk() -> None:
        while True:
            print("still here")
            time.sleep(0.005)

    threading.Thread(target=talk, daemon=True).start()


class Optimizer(torch.optim.SGD):
    """Acts in its step."""

    def __init__(self, weights: Any, act: Act) -> None:
        super().__init__(weights, lr=0.1)
        self.act = act

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.act()


# what does not fit


class Product(nn.Module):
    """x @ w, in a layer that this package does not know."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(inputs, outputs, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


class Products(nn.Module):
    """x @ w1 @ w2: whether the first fits the second is its own affair."""

    def __init__(self, first: tuple[int, int], second: tuple[int, int]) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.randn(first)), nn.Parameter(torch.randn(second))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w1 @ self.w2


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Reshaped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), 7)


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


# what prints, and what is not finite


class Prints(nn.Module):
    def __init__(self, text: str, warning: str = "") -> None:
        super().__init__()
        self.text, self.warning = text, warning
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        print(self.text)
        if self.warning:
            import warnings

            warnings.warn(self.warning, stacklevel=1)
        return self.linear(x)
