"""The activation's side of its channel: lines `head JSON [TAB body]` over one socket.

Requests carry an id, and the line that answers comes back under it. Bodies are raw JSON bytes, spliced in and out:
they are never parsed here, so that numbers and escapes arrive as they were sent.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Callable

MAX_LINE = 32 << 20

# In JSON, a raw LF or TAB is only ever space between tokens (inside a text it must be escaped).
_TO_SPACE = bytes.maketrans(b"\n\t\r", b"   ")

ORPHANED = 99
"""Exit code of a child whose channel ended under it."""


class ChannelError(Exception):
    """A line could not be sent, or nobody will answer it any more."""


@dataclass
class Message:
    """One line: the head's fields and, where there was one, the raw body."""

    head: dict[str, Any]
    body: bytes | None = None


@dataclass(eq=False)
class Pending:
    """A request on its way. `event` is set when `answer` is there, or when the request was given up."""

    id: int
    event: threading.Event = field(default_factory=threading.Event)
    answer: Message | None = None


def encode_line(head: dict[str, Any], body: bytes | None = None) -> bytes:
    """ASCII heads: text with lone surrogates, which a file name or a model may hold, cannot break the line."""
    line = json.dumps(head, default=str, separators=(",", ":")).encode("ascii")
    if body is not None:
        line += b"\t" + body.translate(_TO_SPACE)
    if len(line) >= MAX_LINE:
        raise ChannelError(f"a line of {len(line)} bytes, at most {MAX_LINE} allowed")
    return line + b"\n"


def decode_line(line: bytes) -> Message:
    head, tab, body = line.rstrip(b"\n").partition(b"\t")
    return Message(json.loads(head), body if tab else None)


class Channel:
    """Requests, notices and answers of one activation, from any thread and from any event loop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._input: BinaryIO = os.fdopen(os.dup(fd), "rb", 1 << 16)
        self._ids = itertools.count(1)
        self._write_lock = threading.Lock()
        self._waiting: dict[int, Callable[[Message], None]] = {}

    def read_job(self) -> Message:
        """The first line. To be called before `start`."""
        line = self._input.readline()
        if not line:
            os._exit(ORPHANED)
        return decode_line(line)

    def start(self) -> None:
        threading.Thread(target=self._read, name="hf-channel", daemon=True).start()

    def emit(self, op: str, body: bytes | None = None, **fields: Any) -> None:
        """A line that nobody answers."""
        self._write(encode_line({"op": op, **fields}, body))

    def begin(self, op: str, body: bytes | None = None, **fields: Any) -> Pending:
        """Send a request and return at once, for callers that wait in their own way."""
        pending = Pending(next(self._ids))

        def arrived(message: Message) -> None:
            pending.answer = message
            pending.event.set()

        self._send(pending.id, arrived, op, body, fields)
        return pending

    def call(self, op: str, body: bytes | None = None, **fields: Any) -> Message:
        """Send a request and wait for its answer; all time limits are the worker's."""
        pending = self.begin(op, body, **fields)
        pending.event.wait()
        return _answered(pending.answer)

    async def call_async(self, op: str, body: bytes | None = None, **fields: Any) -> Message:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Message] = loop.create_future()
        request = next(self._ids)

        def settle(message: Message) -> None:
            if not future.done():
                future.set_result(message)

        self._send(request, lambda message: loop.call_soon_threadsafe(settle, message), op, body, fields)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancel(request)
            raise

    def cancel(self, request: int) -> None:
        """Nobody waits for this request any more; without effect where it has been answered."""
        if self._waiting.pop(request, None) is not None:
            self.emit("cancel", ref=request)

    def _send(
        self, request: int, arrived: Callable[[Message], None], op: str, body: bytes | None, fields: dict[str, Any]
    ) -> None:
        line = encode_line({"id": request, "op": op, **fields}, body)
        self._waiting[request] = arrived
        self._write(line)

    def _write(self, line: bytes) -> None:
        with self._write_lock:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    def _read(self) -> None:
        for line in self._input:
            message = decode_line(line)
            arrived = self._waiting.pop(message.head.get("id", 0), None)
            if arrived is not None:
                arrived(message)
        os._exit(ORPHANED)


def _answered(answer: Message | None) -> Message:
    if answer is None:
        raise ChannelError("the request was given up before it was answered")
    return answer
