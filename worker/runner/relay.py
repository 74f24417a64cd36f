"""The relay: one fork per activation, and its bytes to and fro.

Single-threaded. It blocks neither on stdout nor on a child: all queues are bounded, and a child sends only what the
worker has room for. What passes through is never looked into.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import sys
import time
from typing import Any

import child
from accounts import Accounts, acting_as, kill_remains, send_signal
from cgroup import OomWatch
from mux import CHUNK, CREDIT, DATA, EXIT, KILL, OPEN, PING, PONG, READY, FrameReader, MuxError, frame
from running import Child, remove_home, tail

READ_AT_ONCE = 1 << 18
OUT_HIGH = 1 << 20
"""Above this many bytes towards the worker, children are not read."""
DOWN_MAX = 64 << 20
"""A child that lets this many bytes towards it pile up is killed."""
DRAIN_S = 2.0
"""How long a dead child's socket may stay open and silent (a grandchild may hold it)."""

# The host's own end. None of them is seen by the worker as anything but the end of its stream.
EXIT_GARBAGE, EXIT_SILENCE, EXIT_STDOUT, EXIT_STDIN = 96, 97, 98, 99
CANNOT_START = 71
"""rc of an activation that could not be forked."""

_HOME_NAME = re.compile(rb"[a-z0-9]{1,64}")


class Host:
    def __init__(self, root: str, silence_s: float, accounts: Accounts) -> None:
        self._root, self._silence_s = root, silence_s
        self._accounts = accounts
        self._oom = OomWatch()
        self._selector = selectors.DefaultSelector()
        self._reader = FrameReader()
        self._out = bytearray()
        self._choked = False
        self._children: dict[int, Child] = {}
        self._by_pid: dict[int, Child] = {}
        self._last_input = time.monotonic()
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        self._selector.register(0, selectors.EVENT_READ, self._on_stdin)
        self._selector.register(self._wake, selectors.EVENT_READ, self._on_wake)

    def run(self, ready: dict[str, Any]) -> None:
        self._send(0, READY, json.dumps(ready).encode())
        while True:
            self._flush()
            if (len(self._out) >= OUT_HIGH) != self._choked:
                self._choked = not self._choked
                for running in list(self._children.values()):
                    self._watch(running)
            now = time.monotonic()
            if self._silence_s and now - self._last_input > self._silence_s:
                os._exit(EXIT_SILENCE)  # a dead daemon gives no end of file
            for ended in [c for c in self._children.values() if c.returncode is not None]:
                self._give_up_on(ended, now)
            for key, events in self._selector.select(1.0):
                if isinstance(key.data, Child):
                    self._on_child(key.data, events)
                elif key.data is not None:
                    key.data()

    # Towards the worker.

    def _send(self, activation: int, kind: int, payload: bytes = b"") -> None:
        self._out += frame(activation, kind, payload)

    def _flush(self) -> None:
        while self._out:
            try:
                sent = os.write(1, memoryview(self._out)[:READ_AT_ONCE])
            except BlockingIOError:
                break
            except OSError:
                os._exit(EXIT_STDOUT)
            del self._out[:sent]
        registered = 1 in self._selector.get_map()
        if self._out and not registered:
            self._selector.register(1, selectors.EVENT_WRITE, None)
        elif registered and not self._out:
            self._selector.unregister(1)

    # From the worker.

    def _on_stdin(self) -> None:
        for _ in range(16):
            try:
                data = os.read(0, READ_AT_ONCE)
            except BlockingIOError:
                return
            if not data:
                os._exit(EXIT_STDIN)  # the worker is gone; where we are PID 1 the kernel ends the rest
            self._last_input = time.monotonic()
            try:
                for activation, kind, payload in self._reader.feed(data):
                    self._on_frame(activation, kind, payload)
            except MuxError as error:
                print(f"runner host: {error}", file=sys.stderr)
                os._exit(EXIT_GARBAGE)

    def _on_frame(self, activation: int, kind: int, payload: bytes) -> None:
        running = self._children.get(activation)
        if kind == PING:
            self._send(0, PONG, payload)
        elif kind == OPEN:
            if running is None:
                self._open(activation, payload)
        elif running is None:
            return  # it has ended in the meantime
        elif kind == DATA:
            running.down += payload
            if len(running.down) > DOWN_MAX:
                running.note = f"killed: it left {DOWN_MAX >> 20} MiB unread"
                self._kill(running, signal.SIGKILL)
            self._push(running)
        elif kind == CREDIT:
            running.credit += int.from_bytes(payload, "big")
            self._watch(running)
        elif kind == KILL and payload and 0 < payload[0] < signal.NSIG:
            self._kill(running, payload[0])

    def _kill(self, running: Child, number: int) -> None:
        if number == signal.SIGKILL:
            running.killed = True
            running.down.clear()
            self._watch(running)
        if running.returncode is None:
            send_signal(running.uid, running.pid, number)

    # Children.

    def _open(self, activation: int, name: bytes) -> None:
        uid: int | None = None
        try:
            if not _HOME_NAME.fullmatch(name):
                raise ValueError("the home name is not of [a-z0-9]{1,64}")
            home = os.path.join(self._root, name.decode())
            if any(other.home == home for other in self._children.values()):
                raise ValueError(f"home {name.decode()} belongs to a running activation")
            uid = self._accounts.take()
            self._fork(activation, home, uid)
        except (OSError, ValueError) as error:
            self._accounts.give_back(uid)
            self._exit(activation, CANNOT_START, 0, f"cannot start: {error}", oom=False)

    def _fork(self, activation: int, home: str, uid: int | None) -> None:
        remove_home(home, uid)  # a host that was killed may have left it
        with acting_as(uid):
            os.mkdir(home, 0o700)
            stderr = os.open(os.path.join(home, "stderr"), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        forked_at = time.time()
        # Blocked until the child has a handler: a signal that comes early must not end it with another code.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            pid = os.fork()
            if pid == 0:
                child.run(theirs, home, stderr, uid, forked_at)
        except OSError:
            for fd in (mine.detach(), theirs.detach(), stderr):
                os.close(fd)
            remove_home(home, uid)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        theirs.close()
        started = Child(activation, pid, mine, home, stderr, uid)
        self._children[activation] = self._by_pid[pid] = started
        self._watch(started)

    def _watch(self, running: Child) -> None:
        events = selectors.EVENT_READ if running.readable and not self._choked else 0
        if running.down:
            events |= selectors.EVENT_WRITE
        registered = running.sock in self._selector.get_map()
        if events and registered:
            self._selector.modify(running.sock, events, running)
        elif events:
            self._selector.register(running.sock, events, running)
        elif registered:
            self._selector.unregister(running.sock)

    def _on_child(self, running: Child, events: int) -> None:
        if self._children.get(running.activation) is not running:
            return  # an event before this one has finished it
        if events & selectors.EVENT_WRITE:
            self._push(running)
        if events & selectors.EVENT_READ:
            self._pull(running)

    def _give_up_on(self, ended: Child, now: float) -> None:
        """A grandchild may hold a dead child's socket open. What is in it still comes first."""
        if self._choked or not ended.readable or now - ended.last_seen <= DRAIN_S:
            return
        self._pull(ended)
        if ended.last_seen < now:
            ended.eof = True
            self._finish(ended)

    def _push(self, running: Child) -> None:
        while running.down:
            try:
                sent = running.sock.send(memoryview(running.down)[:READ_AT_ONCE])
            except BlockingIOError:
                break
            except OSError:
                running.down.clear()  # it has closed its socket
                break
            del running.down[:sent]
        self._watch(running)

    def _pull(self, running: Child) -> None:
        try:
            data = running.sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        running.last_seen = time.monotonic()
        if data:
            running.credit -= len(data)
            if not running.killed:
                self._send(running.activation, DATA, data)
        else:
            running.eof = True
        self._watch(running)
        self._finish(running)

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = self._by_pid.pop(pid, None)  # PID 1 reaps strangers too
            if ended is not None:
                ended.returncode = os.waitstatus_to_exitcode(status)
                ended.last_seen = time.monotonic()
                kill_remains(ended.uid, pid)
                self._finish(ended)

    def _finish(self, ended: Child) -> None:
        """EXIT is the last frame of an activation: the process is reaped, and all its bytes are relayed."""
        if ended.returncode is None or not ended.eof or self._children.pop(ended.activation, None) is None:
            return
        if ended.sock in self._selector.get_map():
            self._selector.unregister(ended.sock)
        ended.sock.close()
        text = tail(ended.stderr) if ended.returncode else ""
        os.close(ended.stderr)
        remove_home(ended.home, ended.uid)
        self._accounts.give_back(ended.uid)
        oom = ended.returncode == -signal.SIGKILL and not ended.killed and self._oom.explains_a_kill()
        text = f"{text}\n{ended.note}" if ended.note else text
        self._exit(ended.activation, ended.returncode, time.time() - ended.started_at, text, oom)

    def _exit(self, activation: int, returncode: int, seconds: float, stderr: str, oom: bool) -> None:
        report = {"rc": returncode, "ms": round(seconds * 1000), "stderr": stderr, "oom": oom}
        self._send(activation, EXIT, json.dumps(report).encode())
