"""Mux frames on the host's stdio: [u32 activation][u8 kind][u32 length][payload], big endian (PROTOCOL.md).

The relay never looks into payloads: DATA carries slices of an activation's own byte stream, so that one long message
cannot hold the pipe for itself and a bad child cannot upset the host.
"""

from __future__ import annotations

import struct
from typing import Iterator

HEAD = struct.Struct(">IBI")
DATA, OPEN, KILL, EXIT, CREDIT, PING, PONG, READY = range(8)

CHUNK = 65_536
"""The longest payload of a frame."""

WINDOW = 1 << 20
"""Bytes of a child that the worker has not acknowledged yet, at most."""


class MuxError(Exception):
    """The byte stream is not one of mux frames."""


def frame(activation: int, kind: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(activation, kind, len(payload)) + payload


class FrameReader:
    """Cuts a byte stream, fed in pieces of any length, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        self._buffer += data
        offset = 0
        try:
            while len(self._buffer) - offset >= HEAD.size:
                activation, kind, length = HEAD.unpack_from(self._buffer, offset)
                if kind > READY or length > CHUNK:
                    raise MuxError(f"frame of kind {kind} with {length} bytes, at most {CHUNK} allowed")
                start = offset + HEAD.size
                if len(self._buffer) - start < length:
                    break
                payload = bytes(self._buffer[start : start + length])
                offset = start + length
                yield activation, kind, payload
        finally:
            del self._buffer[:offset]
