"""What the host keeps of a running activation, and what it does with the files of one."""

from __future__ import annotations

import os
import shutil
import socket
import time

from accounts import acting_as
from mux import WINDOW

STDERR_TAIL = 4096


class Child:
    """One activation: its process, its socket, and what is on the way."""

    def __init__(self, activation: int, pid: int, sock: socket.socket, home: str, stderr: int, uid: int | None) -> None:
        self.activation, self.pid, self.sock = activation, pid, sock
        self.home, self.stderr, self.uid = home, stderr, uid
        self.started_at = time.time()
        self.down = bytearray()
        self.credit = WINDOW
        self.eof = False
        self.returncode: int | None = None
        self.killed = False
        """Somebody asked for its end: its bytes no longer matter, and are read to the end without credit."""
        self.note = ""
        self.last_seen = 0.0

    @property
    def readable(self) -> bool:
        return not self.eof and (self.credit > 0 or self.killed)


def remove_home(home: str, uid: int | None) -> None:
    with acting_as(uid):
        shutil.rmtree(home, ignore_errors=True)


def tail(fd: int) -> str:
    size = os.fstat(fd).st_size
    return os.pread(fd, STDERR_TAIL, max(0, size - STDERR_TAIL)).decode("utf-8", "replace")
