"""How the ranks of a world that is there are heard: each has a connection to rank 0, whose main thread watches them all."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import AuthenticationError, connection
from typing import Any

from ppedu.core.format import joined
from ppedu.runtime.errors import RunError
from ppedu.runtime.rank.group import machine_id

SILENCE = 5.0  # seconds after which somebody who calls and says nothing is sent away
HUB, LEFT = "hub", "left"


@dataclass(frozen=True, slots=True)
class Links:
    """connections: rank 0's to all ranks, its own among them; on the other ranks none. mine: this rank's to rank 0. trails: to the others on rank 0, to rank 0 on the others: what each of the two does, operation by operation.
    machines: of each rank, its host's name and what tells two hosts of one name apart."""

    connections: list[connection.Connection]
    trails: dict[int, Trail]
    mine: connection.Connection
    machines: list[tuple[str, str]]

    def close(self) -> None:
        ends: list[Any] = [*self.connections, self.mine, *self.trails.values()]
        for end in ends:
            end.close()


class Trail:
    """Records of three numbers, of which the reader wants the last one only: a rank that is killed says nothing any more.

    Neither end takes more than some microseconds: one that did would hold up the operations themselves.
    """

    RECORD = struct.Struct("!3d")

    def __init__(self, connected: socket.socket) -> None:
        self._socket, self._rest = connected, b""

    def write(self, record: Sequence[float]) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(self.RECORD.pack(*record))

    def last(self) -> tuple[float, float, float] | None:
        """The last record since the last call."""
        data = self._rest
        with contextlib.suppress(OSError):
            while connection.wait([self._socket], 0) and (more := self._socket.recv(1 << 16)):
                data += more
        whole = len(data) - len(data) % self.RECORD.size
        self._rest = data[whole:]
        if not whole:
            return None
        step, at, since = self.RECORD.unpack_from(data, whole - self.RECORD.size)
        return step, at, since

    def close(self) -> None:
        self._socket.close()


def meet(store: Any, rank: int, size: int, wanted: dict[str, Any], timeout: float, check: Callable[[], None]) -> Links:
    """Join the ranks of a world, which share `store`. Every rank calls this. wanted: what all of them have to want alike.

    Messages are pickled, so that who connects must know the key: it stands in the store, which only ranks have.
    Raises ValueError where they want different things, and RunError where a rank does not come, or cannot reach rank 0, within
    `timeout` seconds. check: called about ten times a second; it raises what ends the run from outside.
    """
    wait = _Wait(time.monotonic() + timeout, check, store)
    try:
        return _met(store, rank, size, wanted, wait)
    except (RunError, ValueError):
        raise
    except RuntimeError as error:  # the store's
        raise RunError(f"the store at which ranks meet is gone: {str(error).partition(chr(10))[0]}") from error
    except BaseException as error:  # Ctrl-C and the like: the others need not wait for this rank
        store.set(LEFT, json.dumps([rank, *machine_id(), type(error).__name__]))
        raise


def _met(store: Any, rank: int, size: int, wanted: dict[str, Any], wait: _Wait) -> Links:
    store.set(f"machine of {rank}", json.dumps([*machine_id(), wanted]))
    if rank == 0:
        connections, trails, mine = _accept_all(store, size, wait)
    else:
        connections, mine = [], _as_connection(_connect(store, rank, "messages", wait))
        trails = {0: Trail(_connect(store, rank, "trail", wait))}
    machines = _read(store, {other: f"machine of {other}" for other in range(size)}, wait)
    links = Links(connections, trails, mine, [(name, boot) for name, boot, _ in machines])
    for other, (_, _, theirs) in enumerate(machines):
        if text := _unlike(machines[0][2], theirs, other):
            links.close()
            raise ValueError(text)
    return links


def _unlike(first: dict[str, Any], theirs: dict[str, Any], rank: int) -> str | None:
    """A sentence where two ranks want different things."""
    for what, wanted in first.items():
        found = theirs.get(what)
        if isinstance(wanted, list) and isinstance(
            found, list
        ):  # sums of weights; machines may round in different ways
            (a, size), (b, _) = wanted, found
            if not abs(a - b) <= 1e-5 * size and not (math.isnan(a) and math.isnan(b)):
                return (
                    f"rank {rank}'s model is not rank 0's: the {what} add up to {b:.6g} there and to {a:.6g} on rank 0. Each rank "
                    "trains its own stages of one model, so make it alike on all: torch.manual_seed(0) before, or the same file"
                )
        elif found != wanted:
            return (
                f"rank 0 called train with {what}={wanted}, and rank {rank} with {what}={found}: all ranks call it alike, since "
                "one run has one model, one schedule, one pace and so on"
            )
    return None


@dataclass(frozen=True, slots=True)
class _Wait:
    deadline: float
    check: Callable[[], None]
    store: Any

    def over(self) -> bool:
        self.check()
        if self.store.check([LEFT]):
            rank, name, _, why = json.loads(self.store.get(LEFT))
            raise RunError(f"rank {rank} on {name} ended the run ({why})", rank=rank, host=name)
        return time.monotonic() > self.deadline


def _read(store: Any, keys: dict[int, str], wait: _Wait) -> list[Any]:
    """What ranks tell, each under a key of its own, as soon as they do. (A wait inside the store could not be interrupted.)"""
    while missing := [rank for rank, key in keys.items() if not store.check([key])]:
        if wait.over():
            raise _missing(missing)
        time.sleep(0.01)
    return [json.loads(store.get(key)) for key in keys.values()]


def _missing(ranks: Sequence[int]) -> RunError:
    return RunError(
        f"rank{'s' if len(ranks) > 1 else ''} {joined(ranks)} did not come, but RANK and WORLD_SIZE in the environment (or torch.distributed) say that there is such a rank. "
        "Start the script on every rank (torchrun does) and let hosts reach one another's ports; or unset WORLD_SIZE where there "
        "is no such world",
        rank=ranks[0],
    )


def _accept_all(
    store: Any, size: int, wait: _Wait
) -> tuple[list[connection.Connection], dict[int, Trail], connection.Connection]:
    """Rank 0: accept two connections of every other rank."""
    here, mine = connection.Pipe()
    found: dict[int, connection.Connection] = {0: here}
    trails: dict[int, Trail] = {}
    with _listener() as listener:
        key = secrets.token_hex(32)
        store.set(HUB, json.dumps([listener.getsockname()[1], key, *machine_id()]))
        listener.settimeout(0.1)
        while missing := [rank for rank in range(1, size) if rank not in found or rank not in trails]:
            if wait.over():
                raise _missing(missing)
            with contextlib.suppress(TimeoutError):
                caller = listener.accept()[0]  # each in a thread: one who says nothing must not hold up the others
                threading.Thread(target=_admit, args=(caller, key.encode(), found, trails), daemon=True).start()
    return [found[rank] for rank in range(size)], trails, mine


def _listener() -> socket.socket:
    """On all addresses of this host, of both kinds where it has both."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=128)


def _admit(
    caller: socket.socket, key: bytes, found: dict[int, connection.Connection], trails: dict[int, Trail]
) -> None:
    """A stranger, or somebody who never says a word, is sent away."""
    one = _as_connection(caller)
    try:
        with _silence_limited(caller):
            connection.deliver_challenge(one, key)
            connection.answer_challenge(one, key)
            kind, rank = one.recv_bytes().split()
        if kind == b"messages":
            found[int(rank)] = one
            return
        trails[int(rank)] = Trail(caller.dup())
    except (OSError, EOFError, ValueError, AuthenticationError):
        pass
    one.close()


@contextmanager
def _silence_limited(caller: socket.socket) -> Iterator[None]:
    """Hang up on somebody who takes longer than some seconds."""
    guard = threading.Timer(SILENCE, _hang_up, (caller,))
    guard.daemon = True
    guard.start()
    try:
        yield
    finally:
        guard.cancel()


def _hang_up(caller: socket.socket) -> None:
    with contextlib.suppress(OSError):
        caller.shutdown(socket.SHUT_RDWR)


def _connect(store: Any, rank: int, kind: str, wait: _Wait) -> socket.socket:
    """Another rank: connect to rank 0."""
    ((port, key, name, boot),) = _read(store, {0: HUB}, wait)
    near = (name, boot) == machine_id()
    addresses = ["127.0.0.1"] if near else [a for a in (os.environ.get("MASTER_ADDR"), name) if a]
    failed: list[str] = []
    while True:
        for address in addresses:
            try:
                caller = socket.create_connection((address, port), timeout=2.0)
                caller.settimeout(None)
                with _as_connection(caller) as mine, _silence_limited(caller):
                    connection.answer_challenge(mine, key.encode())
                    connection.deliver_challenge(mine, key.encode())
                    mine.send_bytes(f"{kind} {rank}".encode())
            except (OSError, EOFError, AuthenticationError) as error:
                failed.append(f"{address}: {error}")
                continue
            return caller
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
