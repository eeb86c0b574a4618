"""Two measured processes of one pair take turns, so that a slow moment falls on both alike.

On a shared machine the speed of a core changes within seconds (a neighbour on its sibling thread,
on the cache, on the memory), which no counter of the guest shows. Two runs back to back then differ
by tens of percent though nothing differs; turns of a tenth of a second do not. Only the holder of
the baton works; the other sleeps in a system call. Both processes are as fresh as without it, and
one process still gives one number an axis.

Until each has warmed up, both work at once: the second aside, on the cores that are not measured
on, and it comes to the measured core when it first holds the baton.

The two ends meet at an abstract Unix socket (Linux). An end whose peer is gone works on alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Collection
from typing import Any, Literal

MEET_LIMIT_S = 60.0
"""How long one end waits for the other to come to the socket."""

RETRY_S = 0.002

Role = Literal["first", "second"]
ARGUMENT = "baton"


def arguments(aside: Collection[int] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the tasks of the two ends carry, the one that begins first.

    Args:
        aside: the cores on which the second warms up; none leaves it where it is.
    """
    name = f"levergate-{secrets.token_hex(8)}"
    first: dict[str, Any] = {ARGUMENT: {"name": name, "role": "first"}}
    second = {"name": name, "role": "second", "aside": sorted(aside)}
    return first, {ARGUMENT: second}


class Baton:
    """One end. The first holds the baton when the measuring begins; the second waits for it there.

    Attributes:
        turns: how often it was given away and came back.
        waited_s: seconds spent without it, which are none of this process's work.
    """

    def __init__(self, name: str, role: Role, aside: Collection[int] = ()) -> None:
        self.turns = 0
        self.waited_s = 0.0
        self._role: Role = role
        self._address = f"\0{name}"
        self._aside = tuple(aside)
        self._cores: set[int] = set()
        self._began = False
        self._server = self._listen() if role == "first" else None
        self._peer: socket.socket | None = None

    def _listen(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(self._address)
        server.listen(1)
        server.settimeout(MEET_LIMIT_S)
        return server

    def start(self) -> None:
        """Before the warm-up: the second end goes aside, and to the socket: there its end shows."""
        if self._role == "second":
            if self._aside:
                self._cores = os.sched_getaffinity(0)
                os.sched_setaffinity(0, self._aside)
            with contextlib.suppress(OSError):
                self._peer = self._connect()

    def turn(self) -> None:
        """Give the baton away and wait until it comes back; the second's first call only waits."""
        start = time.monotonic()
        if not self._began:
            self._begin()
        elif self._peer is not None:
            self._give()
        if self._peer is not None:
            self._take()
            self.turns += 1
        self.waited_s += time.monotonic() - start

    def _begin(self) -> None:
        self._began = True
        if self._role == "second":
            if self._cores:
                os.sched_setaffinity(0, self._cores)
            return
        with contextlib.suppress(OSError):
            self._peer = self._accept()
        self._give()

    def _give(self) -> None:
        if self._peer is None:
            return
        try:
            self._peer.sendall(b"x")
        except OSError:
            self._lose()

    def close(self) -> None:
        """Leave: the other end works on alone."""
        self._lose()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _take(self) -> None:
        if self._peer is None:
            return
        try:
            if not self._peer.recv(1):
                self._lose()
        except OSError:
            self._lose()

    def _lose(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def _accept(self) -> socket.socket:
        assert self._server is not None
        peer, _ = self._server.accept()
        peer.settimeout(None)
        return peer

    def _connect(self) -> socket.socket | None:
        limit = time.monotonic() + MEET_LIMIT_S
        while time.monotonic() < limit:
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                peer.connect(self._address)
            except OSError:
                peer.close()
                time.sleep(RETRY_S)
                continue
            return peer
        return None


class Alone:
    """Stands where no other process takes turns."""

    turns = 0
    waited_s = 0.0

    def start(self) -> None:
        """Begin at once."""

    def turn(self) -> None:
        """Go on."""

    def close(self) -> None:
        """Nothing to leave."""


def of(task_arguments: Any) -> Baton | Alone:
    """The end that a task's arguments name."""
    said = task_arguments.get(ARGUMENT)
    return Alone() if said is None else Baton(said["name"], said["role"], said.get("aside", ()))
