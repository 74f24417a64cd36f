"""A uid for each running child, and acting as one.

The host is root with CAP_SETUID and CAP_SETGID only: it may not touch a child's files nor signal it. So it becomes the
child's user for as long as it makes or removes a home or sends a signal. The group stays root's: that is what lets it
make a home below a root directory that is writable for the group only, where children (group = uid) are strangers.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import Iterator

UID_BASE = 20_000


class Accounts:
    """Hands out uids. Where they are off (the host is an ordinary process), everything runs as the host's user."""

    def __init__(self, base: int | None) -> None:
        self._base = base
        self._taken: set[int] = set()

    @classmethod
    def from_environment(cls) -> Accounts:
        """Only as PID 1 of a container: elsewhere the uids may be somebody's, and two hosts would share them."""
        on = os.getuid() == 0 and os.getpid() == 1 and os.environ.get("HF_UIDS") != "off"
        return cls(int(os.environ.get("HF_UID_BASE", UID_BASE)) if on else None)

    @property
    def on(self) -> bool:
        return self._base is not None

    def take(self) -> int | None:
        """The lowest uid that no running child has."""
        if self._base is None:
            return None
        uid = self._base
        while uid in self._taken:
            uid += 1
        self._taken.add(uid)
        return uid

    def give_back(self, uid: int | None) -> None:
        if uid is not None:
            self._taken.discard(uid)

    @staticmethod
    def drop_to(uid: int | None) -> None:
        """For good, in the child, before it reads a byte."""
        if uid is None:
            return
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


@contextmanager
def acting_as(uid: int | None) -> Iterator[None]:
    """The saved uid stays 0, which is what allows the way back, and what keeps the user's processes from the host."""
    if uid is None:
        yield
        return
    os.setresuid(uid, uid, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def send_signal(uid: int | None, pid: int, number: int) -> None:
    with acting_as(uid):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def kill_remains(uid: int | None, pid: int) -> None:
    """Whatever the reaped child `pid` has left: all of its user's processes, or at least its process group."""
    try:
        if uid is None:
            os.killpg(pid, signal.SIGKILL)
        else:
            with acting_as(uid):
                os.kill(-1, signal.SIGKILL)
    except OSError:
        pass
