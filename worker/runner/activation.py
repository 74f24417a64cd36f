"""One activation, in a forked child: the first line on the channel is the job, the last one the claim (`result`)."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import resource
import signal
import tempfile
import threading
import time
from typing import Any

import broker_env
import events
import hermes_setup
import identity
import mcp_setup
import pin
import prompt
import transport
from channel import Channel

EXIT_OK, EXIT_SETUP_FAILED, EXIT_TERMINATED = 0, 3, 143

MAX_RESULT_BODY = 24 << 20

_NO_USER = "No user is available. Choose the most reasonable option and go on."


class Activation:
    """From the job to the claim. `run` returns the process' exit code."""

    def __init__(self, channel: Channel, home: str, forked_at: float) -> None:
        self._channel = channel
        self._home = home
        self._marks: dict[str, float] = {"fork": forked_at}
        self._agent: Any = None
        self._terminated = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        message = self._channel.read_job()
        job = message.head
        turn = json.loads(message.body or b"{}")
        self._mark("job")
        self._prepare(job)
        connected = mcp_setup.connect(self._channel, job["mcp"])
        self._mark("mcp")
        disabled = set(job["disabled_tools"])
        _withhold(disabled)
        problems = connected.problems
        if not problems:
            agent = self._build_agent(job)
            problems = mcp_setup.not_offered(connected, set(agent.valid_tool_names), disabled)
        if problems:
            text = "; ".join(f"{problem['server']}: {problem['error']}" for problem in problems)
            self._claim("setup_failed", exit_reason="mcp", error=text, mcp=problems)
            return EXIT_SETUP_FAILED
        self._mark("agent")
        return self._converse(agent, job, turn)

    def _on_sigterm(self, *_: object) -> None:
        if self._terminated:
            return
        self._terminated = True
        if self._agent is None:
            os._exit(EXIT_TERMINATED)
        # Not in the handler: interrupt() takes locks that the interrupted code may hold.
        threading.Thread(target=self._agent.interrupt, args=("cancelled",), daemon=True).start()

    def _mark(self, name: str) -> None:
        self._marks[name] = time.time()

    def _prepare(self, job: dict[str, Any]) -> None:
        os.environ.update(
            HERMES_HOME=self._home,
            HOME=self._home,
            TMPDIR=self._home,
            TERMINAL_CWD=job["cwd"],
            TERMINAL_TIMEOUT=str(int(job["tool_timeout_s"])),
        )
        tempfile.tempdir = None
        os.chdir(self._home)
        hermes_setup.write_config(self._home, job)
        import run_agent

        run_agent._hermes_home = pathlib.Path(self._home)
        pin.install(job["pin"], self._home)
        transport.install(self._channel, run_agent.AIAgent)
        # In this order: the wrap of `events` runs inside that of `identity`, and so knows its agent.
        events.install(self._channel, run_agent.AIAgent, set(job["disabled_tools"]))
        identity.install(run_agent.AIAgent)
        prompt.install(job["probe"])
        broker_env.install(self._channel, job)
        self._channel.start()

    def _build_agent(self, job: dict[str, Any]) -> Any:
        from gateway.session_context import declare_stateless_channel
        from run_agent import AIAgent

        agent = AIAgent(
            base_url=transport.MODEL_URL,
            api_key="none",
            # With none, auxiliary calls look for other providers. With no mode, some model names get another dialect.
            provider="custom",
            api_mode="chat_completions",
            model=job["model"],
            max_iterations=job["max_turns"],
            max_tokens=job["max_tokens"],
            tool_delay=0.0,
            # `mcp-` always: a server that is named like a toolset would silently be that toolset.
            enabled_toolsets=[*job["toolsets"], *(f"mcp-{name}" for name in job["mcp"])],
            request_overrides=job.get("request_overrides") or None,
            quiet_mode=True,
            skip_context_files=True,
            skip_memory=True,
            session_db=None,
            session_id=job["session"],
            save_trajectories=False,
            checkpoints_enabled=False,
            fallback_model=None,
            credential_pool=None,
            clarify_callback=lambda *_args, **_kwargs: _NO_USER,
        )
        agent._persist_disabled = True
        agent.suppress_status_output = True
        # Else delegation is in the background, and its results come as a later message, which there is none of.
        declare_stateless_channel()
        return agent

    def _converse(self, agent: Any, job: dict[str, Any], turn: dict[str, Any]) -> int:
        self._agent = agent
        result: dict[str, Any] = {}
        exception: BaseException | None = None
        try:
            result = agent.run_conversation(turn["user"], job.get("system"), turn.get("history") or [])
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs into the claim
            exception = error
        self._mark("done")
        self._claim(
            events.status_of(result, exception, self._terminated),
            exit_reason=result.get("turn_exit_reason"),
            error=result.get("error"),
            exception=f"{type(exception).__name__}: {exception}" if exception else None,
            summary_failed=_summary_failed(result),
            api_calls=result.get("api_calls"),
            body=_body(result.get("final_response"), result.get("messages")),
        )
        return EXIT_TERMINATED if self._terminated else EXIT_OK

    def _claim(self, status: str, *, body: bytes | None = None, **fields: Any) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        self._channel.emit(
            "result",
            body or _body(None, []),
            status=status,
            cpu_s=round(used.ru_utime + used.ru_stime, 4),
            marks=self._marks,
            **fields,
        )


def _withhold(disabled: set[str]) -> None:
    """Taken out of the registry: neither the root nor a child is offered them, nor does a repaired name find them."""
    from tools.registry import registry

    for name in disabled:
        registry.deregister(name)


def _summary_failed(result: dict[str, Any]) -> bool:
    """At the turn limit Hermes asks for a summary. If that fails, it hands the error over as the final answer."""
    if not str(result.get("turn_exit_reason") or "").startswith("max_iterations"):
        return False
    final = str(result.get("final_response") or "")
    return final.startswith("I reached the ") and ("couldn't summarize" in final or "couldn't generate" in final)


def _body(final: Any, messages: Any) -> bytes:
    body = _json({"final": final, "messages": messages})
    if len(body) <= MAX_RESULT_BODY:
        return body
    digest = hashlib.sha256(body).hexdigest()
    cut: dict[str, Any] = {"final": final, "messages": None, "messages_cut": True, "sha256": digest}
    body = _json(cut)
    if len(body) > MAX_RESULT_BODY:
        body = _json({**cut, "final": str(final)[: 1 << 20], "final_cut": True})
    return body


def _json(value: Any) -> bytes:
    return json.dumps(value, default=str, separators=(",", ":")).encode("ascii")
