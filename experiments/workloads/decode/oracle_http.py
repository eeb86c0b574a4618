"""Several streamed answers over HTTP at once, read by one thread and understood afterwards.

While answers arrive, each piece is only stamped and kept: what it says is read when all have ended.
A thread for each answer, or JSON read in between, would take milliseconds a step at 32 answers and
make a fast server look slow.
"""

from __future__ import annotations

import http.client
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from levers.errors import BadParameter, LevergateError

PIECE_BYTES = 1 << 16
STALL_S = 60.0
"""Seconds without a byte from any answer, after which the server counts as hung."""
CONNECT_S = 10.0
DONE = b"data: [DONE]"
"""The last event of a stream."""


class ServerFailed(LevergateError):
    """The server of an oracle refused, died, or answered something else than was asked."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and the path under which its API lies."""

    host: str
    port: int
    path: str = ""

    @property
    def url(self) -> str:
        """For messages."""
        return f"http://{self.host}:{self.port}{self.path}"


def parsed_address(url: str) -> Address:
    """The address in ``http://HOST[:PORT][/PATH]``; a path that ends with ``/v1`` may be given.

    Raises:
        BadParameter: another scheme, or no host.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        raise BadParameter(f"no server address: {url!r}", cure="write http://HOST:PORT")
    return Address(parts.hostname, port, parts.path.rstrip("/").removesuffix("/v1"))


@dataclass(slots=True)
class Answer:
    """One answer as it came: when the request was sent, and each piece with its time."""

    sent_s: float
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        """Whether the last event of the stream has come."""
        return DONE in b"".join(piece for _, piece in self.pieces[-2:])


def get(address: Address, path: str, limit_s: float = CONNECT_S) -> tuple[int, bytes]:
    """Status and body of a small resource.

    Raises:
        OSError: nobody listens, or the answer breaks off.
    """
    connection = http.client.HTTPConnection(address.host, address.port, timeout=limit_s)
    try:
        connection.request("GET", address.path + path, headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def post_together(
    address: Address, path: str, bodies: Sequence[bytes], stall_s: float = STALL_S
) -> tuple[Answer, ...]:
    """Send all bodies at the same moment and keep what comes back, until every stream has ended.

    The connections are open before the first request is sent.

    Raises:
        ServerFailed: no connection, an answer that is cut off, or none for ``stall_s`` seconds.
    """
    sockets: list[socket.socket] = []
    try:
        for _ in bodies:
            sockets.append(socket.create_connection((address.host, address.port), CONNECT_S))
        answers = []
        for one, body in zip(sockets, bodies, strict=True):
            answers.append(Answer(time.perf_counter()))
            one.sendall(_request(address, path, body))
            one.setblocking(False)
        _read(sockets, answers, stall_s)
    except OSError as error:
        raise ServerFailed(
            f"the server at {address.url} cannot be reached: {error}",
            cure="see its log; it may have died under the load",
        ) from error
    finally:
        for one in sockets:
            one.close()
    return tuple(answers)


def _request(address: Address, path: str, body: bytes) -> bytes:
    head = (
        f"POST {address.path}{path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\n"
        f"Content-Type: application/json\r\nAccept: text/event-stream\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _read(sockets: Sequence[socket.socket], answers: Sequence[Answer], stall_s: float) -> None:
    """Keep each piece with its time; an answer ends with its last event or its connection."""
    with selectors.DefaultSelector() as selector:
        for one, answer in zip(sockets, answers, strict=True):
            one.settimeout(0.0)
            selector.register(one, selectors.EVENT_READ, (one, answer))
        open_answers = len(answers)
        while open_answers:
            ready = selector.select(stall_s)
            now = time.perf_counter()
            if not ready:
                raise ServerFailed(
                    f"the server sent nothing for {stall_s:.0f} s, {open_answers} answers are open",
                    cure="see its log; it hangs",
                )
            for key, _ in ready:
                one, answer = key.data
                piece = one.recv(PIECE_BYTES)
                answer.pieces.append((now, piece))
                if not piece or answer.has_ended:
                    selector.unregister(one)
                    open_answers -= 1


@dataclass(slots=True)
class Reply:
    """An answer that was read: its status, its events with their times, or its plain body."""

    status: int
    events: list[tuple[float, bytes]]
    body: bytes


def read_answer(answer: Answer) -> Reply:
    """Take an answer apart; an event has the time of the piece that completed it.

    Raises:
        ServerFailed: it is not HTTP.
    """
    reader = _Reader()
    for at_s, piece in answer.pieces:
        reader.feed(at_s, piece)
    if reader.status is None:
        raise ServerFailed("the server closed a connection and gave no answer", cure="see its log")
    return Reply(reader.status, reader.events, reader.body)


class _Reader:
    """HTTP/1.1 head, then chunks or plain bytes, then server-sent events."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.events: list[tuple[float, bytes]] = []
        self.body = b""
        self._raw, self._text = b"", b""
        self._chunked = False

    def feed(self, at_s: float, piece: bytes) -> None:
        """One more piece."""
        self._raw += piece
        if self.status is None and not self._read_head():
            return
        found = self._unchunked() if self._chunked else self._take_all()
        self.body += found
        self._text += found.replace(b"\r\n", b"\n")
        *complete, self._text = self._text.split(b"\n\n")
        for event in complete:
            data = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if data:
                self.events.append((at_s, b"\n".join(data)))

    def _read_head(self) -> bool:
        head, found, rest = self._raw.partition(b"\r\n\r\n")
        if not found:
            return False
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(maxsplit=2)
        if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
            raise ServerFailed(f"the server does not speak HTTP: {lines[0]!r}", cure="see its log")
        self.status, self._raw = int(words[1]), rest
        self._chunked = any(
            line.lower().startswith("transfer-encoding:") and "chunked" in line.lower()
            for line in lines[1:]
        )
        return True

    def _take_all(self) -> bytes:
        found, self._raw = self._raw, b""
        return found

    def _unchunked(self) -> bytes:
        """The content of the chunks that are complete."""
        found = b""
        while True:
            line, ended, rest = self._raw.partition(b"\r\n")
            if not ended:
                return found
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError as error:
                raise ServerFailed(f"a broken chunk: {line!r}", cure="see its log") from error
            if len(rest) < size + 2:
                return found
            found, self._raw = found + rest[:size], rest[size + 2 :]
