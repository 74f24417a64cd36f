"""Hermes' execution environment, whose commands run in the task sandbox.

Only the raw command travels. The worker wraps it for the shell that the task image really has, tracks the working
directory and exported variables, bounds the output, enforces the time limit and kills what is left.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

from tools.environments.base import BaseEnvironment, touch_activity_if_due
from tools.interrupt import is_interrupted

import identity
from channel import Channel, ChannelError

INTERRUPT_POLL_S = 0.1

# Made by Hermes 0.19.0 itself (tools/process_registry.py, tools/code_execution_tool.py, tools/file_operations.py).
_SPAWN = re.compile(r"\( nohup bash -lc .*hermes_bg_(?P<session>\w+)\.log", re.DOTALL)
_KILL = re.compile(r"kill (\d+) 2>/dev/null")
_SCRIPT = " python3 script.py"
_BASH_ONLY_PREFIX = "set -o pipefail; "
# GNU grep takes the default path "." for a hidden folder, and finds nothing in it without a word.
_HIDDEN, _HIDDEN_BELOW = "--exclude-dir='.*'", "--exclude-dir='.[!.]*'"


class BrokerEnvironment(BaseEnvironment):
    """One for the whole activation: the root agent and its children share one sandbox."""

    def __init__(self, channel: Channel, job: dict[str, Any]) -> None:
        self._temp_dir: str = job["temp_dir"]  # asked for while Hermes' own part is set up
        super().__init__(cwd=job["cwd"], timeout=int(job["tool_timeout_s"]))
        self._channel = channel
        self._has_bash = job["shell"] == "bash"
        self._spawned: dict[str, int] = {}
        self.pollers: dict[str, identity.Who] = {}
        """Who started a background process, by Hermes' id of it: its poller thread has lost the context."""

    def execute(
        self,
        command: str,
        cwd: str = "",
        *,
        timeout: int | None = None,
        stdin_data: str | None = None,
        rewrite_compound_background: bool = True,
        bounded_capture: bool = False,
    ) -> dict[str, Any]:
        command, sudo_stdin = self._prepare_command(command)
        if rewrite_compound_background:
            from tools.terminal_tool import _rewrite_compound_background

            command = _rewrite_compound_background(command)
        if self._kill_tree(command):
            return {"output": "", "returncode": 0}

        if not bounded_capture:
            command = command.replace(f"grep -rnH {_HIDDEN}", f"grep -rnH {_HIDDEN_BELOW}", 1)
        spawn = _SPAWN.search(command)
        if spawn:
            self.pollers[spawn["session"]] = identity.current()
        parts = [part for part in (sudo_stdin, stdin_data) if part is not None]
        fields: dict[str, Any] = {
            "command": command if self._has_bash else _for_plain_sh(command),
            "cwd": cwd or self.cwd,
            "timeout_s": timeout or self.timeout,
            "internal": not (bounded_capture or spawn or _SCRIPT in command),
            "spawn": bool(spawn),
            "cap": _model_output_cap() if bounded_capture else 0,
        }
        if parts:
            fields["stdin"] = "".join(parts)
        return self._run(fields)

    def _run(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Wait for the answer. The time limit is the worker's: that it pauses is no reason to give a command up."""
        try:
            pending = self._channel.begin("exec", who=identity.current(), **fields)
        except ChannelError as error:
            return {"output": f"[Command not run: {error}]", "returncode": 1}
        now = time.monotonic()
        activity = {"last_touch": now, "start": now}
        while not pending.event.wait(INTERRUPT_POLL_S):
            if is_interrupted():
                self._channel.cancel(pending.id)
                return {"output": "\n[Command interrupted]", "returncode": 130}
            touch_activity_if_due(activity, "terminal command running")
        head = pending.answer.head if pending.answer else {}
        output, code = head.get("output", ""), head.get("code", 1)
        if fields["spawn"] and output.strip().isdigit():
            self._spawned[output.strip()] = pending.id
        elif head.get("cwd"):
            self.cwd = head["cwd"]
        return {"output": output, "returncode": code}

    def _kill_tree(self, command: str) -> bool:
        """Hermes kills the pid of its wrapper only; the worker kills all that the spawning command started."""
        match = _KILL.fullmatch(command)
        ref = self._spawned.get(match[1]) if match else None
        if ref is None:
            return False
        self._channel.call("kill", who=identity.current(), ref=ref)
        return True

    def get_temp_dir(self) -> str:
        return self._temp_dir

    def _run_bash(self, *_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError("commands run through execute()")

    def init_session(self) -> None:
        """No snapshot: the worker keeps the exported variables."""

    def cleanup(self) -> None:
        """The sandbox is the worker's."""


def _for_plain_sh(command: str) -> str:
    return command.removeprefix(_BASH_ONLY_PREFIX).replace("( nohup bash -lc ", "( sh -lc ", 1)


def _model_output_cap() -> int:
    from tools.tool_output_limits import get_max_bytes

    return get_max_bytes()


def install(channel: Channel, job: dict[str, Any]) -> None:
    """Make the environment ahead of the first command: large MCP results are saved only where one exists."""
    import tools.terminal_tool as terminal_tool
    from tools.process_registry import ProcessRegistry

    environment = BrokerEnvironment(channel, job)
    terminal_tool._create_environment = lambda *_args, **_kwargs: environment
    terminal_tool._active_environments["default"] = environment
    terminal_tool._last_activity["default"] = time.time()
    # Paths below /home and /Users are as good as others here: the job's directory is one of the task sandbox.
    terminal_tool._is_unusable_container_cwd = lambda cwd: bool(cwd) and not os.path.isabs(cwd)

    plain_poll: Any = ProcessRegistry._env_poller_loop

    def poll(self: Any, session: Any, *args: Any) -> None:
        with identity.speaking_as(environment.pollers.get(session.id) or identity.current()):
            plain_poll(self, session, *args)

    ProcessRegistry._env_poller_loop = poll  # type: ignore[method-assign]
