"""What the worker is told of an activation as it goes: agents, tool calls, compactions, repaired tool names."""

from __future__ import annotations

import sys
import time
from typing import Any

import identity
from channel import Channel


_CAUGHT = ("local_processing_error", "error_near_max_iterations")
"""How Hermes says that it has caught an exception of its own."""


def status_of(result: dict[str, Any], exception: BaseException | None = None, signalled: bool = False) -> str:
    """Hermes sets several flags at once: a turn that was interrupted also says that it was completed."""
    if result.get("interrupted") or signalled:
        return "interrupted"
    reason = str(result.get("turn_exit_reason") or "")
    if exception is not None or result.get("failed") or result.get("error") or reason.startswith(_CAUGHT):
        return "failed"
    return "completed" if result.get("completed") else "incomplete"


def install(channel: Channel, agent_class: Any, withheld: set[str]) -> None:
    _observe_agents(channel, agent_class)
    _observe_tools(channel, agent_class)
    _observe_compaction(channel, agent_class)
    _observe_repairs(channel, agent_class, withheld)


def _observe_agents(channel: Channel, agent_class: Any) -> None:
    plain = agent_class.run_conversation

    def run_conversation(self: Any, *args: Any, **kwargs: Any) -> Any:
        who = identity.of_agent(self)
        channel.emit("event", kind="agent_start", who=who, at=time.time())
        status = "failed"
        try:
            result = plain(self, *args, **kwargs)
            status = status_of(result if isinstance(result, dict) else {})
            return result
        finally:
            channel.emit("event", kind="agent_end", who=who, status=status, at=time.time())

    agent_class.run_conversation = run_conversation


def _observe_tools(channel: Channel, agent_class: Any) -> None:
    """Hermes' own hooks: they fire for the root and for children, on the sequential and on the parallel path.

    On the parallel one they fire for the whole batch before any of it runs, in the thread that hands it out: there a
    call begins when its worker does.
    """
    from hermes_cli.plugins import get_plugin_manager

    def tell(kind: str) -> None:
        who = identity.current()
        channel.emit("event", kind=kind, who=who, call=who.get("call"), tool=who.get("tool"), at=time.time())

    def before(**hook: Any) -> None:
        if _hands_out_a_batch():
            return
        identity.enter_call(hook.get("tool_call_id") or None, hook.get("tool_name"))
        tell("tool_start")

    def after(**hook: Any) -> None:
        who = {**identity.current(), "tool": hook.get("tool_name")}
        if hook.get("tool_call_id"):
            who["call"] = hook["tool_call_id"]
        channel.emit(
            "event", kind="tool_end", who=who, call=who.get("call"), tool=who["tool"], status=hook.get("status"),
            at=time.time(),
        )  # fmt: skip
        identity.leave_call()

    hooks = get_plugin_manager()._hooks
    hooks.setdefault("pre_tool_call", []).append(before)
    hooks.setdefault("post_tool_call", []).append(after)

    plain = agent_class._invoke_tool

    def invoke(self: Any, name: str, arguments: Any, task: Any, call_id: str | None = None, *rest: Any, **more: Any) -> Any:
        # Only the parallel path comes here with the hook behind it.
        if more.get("pre_tool_block_checked"):
            identity.enter_call(call_id, name)
            tell("tool_start")
        return plain(self, name, arguments, task, call_id, *rest, **more)

    agent_class._invoke_tool = invoke


def _hands_out_a_batch() -> bool:
    """Whether a pre_tool_call hook was fired by the function that runs calls side by side."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "execute_tool_calls_concurrent":
            return True
        if frame.f_code.co_name in ("execute_tool_calls_sequential", "_run_tool"):
            return False
        frame = frame.f_back
    return False


def _observe_compaction(channel: Channel, agent_class: Any) -> None:
    plain = agent_class._compress_context

    def compress(self: Any, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
        before = len(messages)
        result = plain(self, messages, *args, **kwargs)
        channel.emit(
            "event", kind="compaction", who=identity.of_agent(self), messages_before=before,
            messages_after=len(result[0]), at=time.time(),
        )  # fmt: skip
        return result

    agent_class._compress_context = compress


def _observe_repairs(channel: Channel, agent_class: Any, withheld: set[str]) -> None:
    """An unknown tool name is replaced by the nearest one, which then runs: say what was asked and what ran.

    A tool that we withhold is not to become its neighbour: search_files would run as read_file.
    """
    plain = agent_class._repair_tool_call

    def repair(self: Any, tool_name: str) -> Any:
        ran = None if tool_name in withheld else plain(self, tool_name)
        if ran:
            # The caller's loop variable is the only place that knows which call it is.
            call = getattr(sys._getframe(1).f_locals.get("tc"), "id", None)
            channel.emit(
                "event", kind="tool_repaired", who=identity.of_agent(self), call=call, asked=tool_name, ran=ran
            )
        return ran

    agent_class._repair_tool_call = repair
