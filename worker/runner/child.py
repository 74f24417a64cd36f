"""Between the fork and the activation: makes the child a process of its own, with nothing of the host's in hand."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import traceback

import activation
from accounts import Accounts
from channel import Channel

MAX_FILE = 64 << 20
EXIT_CRASHED = 70

_CHANNEL_FD = 3

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_LIBC = ctypes.CDLL(None, use_errno=True)


def deny_inspection() -> None:
    """No process, of the same user either, may open this one's memory, environment or descriptors. Forks inherit it."""
    _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl option {option}")


def run(sock: socket.socket, home: str, stderr: int, uid: int | None, forked_at: float) -> None:
    """The rest of a forked child's life. SIGTERM is blocked until the activation can handle it."""
    code = EXIT_CRASHED
    try:
        _settle(sock, stderr)
        Accounts.drop_to(uid)
        # A change of uid resets the first two, so they come after it.
        deny_inspection()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE, MAX_FILE))
        code = activation.Activation(Channel(_CHANNEL_FD), home, forked_at).run()
    except BaseException:  # noqa: BLE001 - nothing may return into the host's loop
        traceback.print_exc()
    finally:
        # Hermes leaves threads that would hold the process.
        os._exit(code if 0 <= code <= 255 else EXIT_CRASHED)


def _settle(sock: socket.socket, stderr: int) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    # Away from 0 to 3 first, so that no dup2 overwrites a descriptor that is still needed.
    channel, log, null = (_high(fd) for fd in (sock.fileno(), stderr, os.open(os.devnull, os.O_RDWR)))
    for source, target in ((null, 0), (log, 1), (log, 2), (channel, _CHANNEL_FD)):
        os.dup2(source, target, inheritable=target != _CHANNEL_FD)
    os.closerange(_CHANNEL_FD + 1, _max_fd())
    sock.detach()
    os.set_blocking(_CHANNEL_FD, True)


def _high(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


def _max_fd() -> int:
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 65_536)

