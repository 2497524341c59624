"""How the ranks of a world that is there are heard: each has a connection to rank 0, whose main thread watches them all."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import AuthenticationError, connection
from typing import Any

from ppedu.runtime.channels import machine_id
from ppedu.runtime.errors import RunError

HUB = "hub"


@dataclass(frozen=True, slots=True)
class Links:
    """ears: rank 0's connections to all ranks, its own among them; on the other ranks none. mine: this rank's connection to
    rank 0. machines: of each rank, its host's name and what tells two hosts of one name apart."""

    ears: list[connection.Connection]
    mine: connection.Connection
    machines: list[tuple[str, str]]

    def close(self) -> None:
        for one in (*self.ears, self.mine):
            one.close()


def meet(store: Any, rank: int, size: int, timeout: float, let_in: Callable[[], None]) -> Links:
    """Join the ranks of a world, which share `store`. Every rank calls this.

    Messages are pickled, so that who connects must know the key: it stands in the store, which only ranks have.
    Raises RunError where a rank does not come, or cannot reach rank 0, within `timeout` seconds. `let_in` is called about
    ten times a second: it raises what ends the run from outside.
    """
    wait = _Patience(time.monotonic() + timeout, let_in)
    store.set(f"machine of {rank}", json.dumps(machine_id()))
    if rank == 0:
        ears, mine = _answered(store, size, wait)
    else:
        ears, mine = [], _joined(store, rank, wait)
    return Links(ears, mine, [_read(store, f"machine of {other}", other, wait) for other in range(size)])


@dataclass(frozen=True, slots=True)
class _Patience:
    deadline: float
    let_in: Callable[[], None]

    def over(self) -> bool:
        self.let_in()
        return time.monotonic() > self.deadline


def _read(store: Any, key: str, rank: int, wait: _Patience) -> Any:
    """What a rank tells under a key, as soon as it does. (A wait inside the store could not be interrupted.)"""
    while not store.check([key]):
        if wait.over():
            raise RunError(
                f"rank {rank} did not come: the environment (RANK, WORLD_SIZE) or torch.distributed says that it is in this "
                "world. Start the script on every rank (torchrun does), or unset WORLD_SIZE where there is no such world",
                rank=rank,
            )
        time.sleep(0.01)
    value = json.loads(store.get(key))
    return tuple(value) if isinstance(value, list) else value


def _answered(store: Any, size: int, wait: _Patience) -> tuple[list[connection.Connection], connection.Connection]:
    """Rank 0: let every other rank in."""
    here, mine = connection.Pipe()
    ears: dict[int, connection.Connection] = {0: here}
    with _listener() as door:
        key = secrets.token_hex(32)
        name, boot = machine_id()
        store.set(HUB, json.dumps([door.getsockname()[1], key, name, boot]))
        door.settimeout(0.1)
        while len(ears) < size:
            if wait.over():
                missing = next(rank for rank in range(size) if rank not in ears)
                raise RunError(
                    f"rank {missing} did not come to rank 0 on {name}, port {door.getsockname()[1]}, in time. Start the script "
                    "on every rank (torchrun does), let the hosts reach one another's ports, or unset WORLD_SIZE where there is "
                    "no such world",
                    rank=missing,
                )
            with contextlib.suppress(TimeoutError):
                _let_in(door.accept()[0], key.encode(), ears)
    return [ears[rank] for rank in range(size)], mine


def _listener() -> socket.socket:
    """On all addresses of this host, of both kinds where it has both."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=128)


def _let_in(caller: socket.socket, key: bytes, ears: dict[int, connection.Connection]) -> None:
    """A stranger, or somebody who never says a word, is sent away."""
    ear = _as_connection(caller)
    guard = threading.Timer(5.0, _hang_up, (caller,))
    guard.start()
    try:
        connection.deliver_challenge(ear, key)
        connection.answer_challenge(ear, key)
        ears[int(ear.recv_bytes())] = ear
    except (OSError, EOFError, ValueError, AuthenticationError):
        ear.close()
    finally:
        guard.cancel()


def _hang_up(caller: socket.socket) -> None:
    with contextlib.suppress(OSError):
        caller.shutdown(socket.SHUT_RDWR)


def _joined(store: Any, rank: int, wait: _Patience) -> connection.Connection:
    """Another rank: go to rank 0."""
    port, key, name, boot = _read(store, HUB, 0, wait)
    addresses = (
        ["127.0.0.1"] if (name, boot) == machine_id() else [a for a in (os.environ.get("MASTER_ADDR"), name) if a]
    )
    failed: list[str] = []
    while True:
        for address in addresses:
            try:
                caller = socket.create_connection((address, port), timeout=2.0)
            except OSError as error:
                failed.append(f"{address}: {error}")
                continue
            caller.settimeout(None)
            mine = _as_connection(caller)
            connection.answer_challenge(mine, key.encode())
            connection.deliver_challenge(mine, key.encode())
            mine.send_bytes(str(rank).encode())
            return mine
        if wait.over():
            raise RunError(
                f"host {name} cannot be reached: rank {rank} on {machine_id()[0]} found no way to rank 0 at port {port} "
                f"({'; '.join(dict.fromkeys(failed))}). Let hosts reach one another's ports, and let MASTER_ADDR be an address "
                "of rank 0's host that the others reach",
                rank=0, host=name,
            )  # fmt: skip
        time.sleep(0.1)


def _as_connection(caller: socket.socket) -> connection.Connection:
    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection.Connection(caller.dup().detach())
