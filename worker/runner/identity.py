"""Who is calling: which agent, under which tool call. It travels on every request line as `who`.

Agents are numbered in the order of their construction (the root is a0), so that a number means the same agent in every
run. The HTTP call of a model request runs on a thread of its own, where the running agent is not known: for those the
client itself is tagged with its owner.
"""

from __future__ import annotations

import contextvars
import itertools
from dataclasses import dataclass
from typing import Any

Who = dict[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A running tool call. `outer` is the one that it runs inside of (tools called by execute_code's script)."""

    id: str | None
    tool: str | None
    outer: ToolCall | None = None


_fixed: contextvars.ContextVar[Who | None] = contextvars.ContextVar("hf_fixed_who", default=None)
_agent: contextvars.ContextVar[Any] = contextvars.ContextVar("hf_agent", default=None)
_call: contextvars.ContextVar[ToolCall | None] = contextvars.ContextVar("hf_tool_call", default=None)
_numbers = itertools.count(0)


def of_agent(agent: Any) -> Who:
    return getattr(agent, "_hf_who", None) or {"agent": None, "parent": None, "spawned_by": None}


def current() -> Who:
    """Who runs here, in this thread or task."""
    fixed = _fixed.get()
    if fixed is not None:
        return fixed
    call = _call.get()
    who = of_agent(_agent.get())
    return {**who, "call": call.id, "tool": call.tool} if call else dict(who)


class speaking_as:
    """`with speaking_as(who):` for code that runs where the caller's context has been lost."""

    def __init__(self, who: Who) -> None:
        self._who = who

    def __enter__(self) -> None:
        self._token = _fixed.set(self._who)

    def __exit__(self, *_: object) -> None:
        _fixed.reset(self._token)


def enter_call(call_id: str | None, tool: str | None) -> None:
    """A call without an id of its own comes from inside another one, and shares its id."""
    outer = _call.get()
    if call_id:
        _call.set(ToolCall(call_id, tool))
    else:
        _call.set(ToolCall(outer.id if outer else None, tool, outer))


def leave_call() -> None:
    call = _call.get()
    _call.set(call.outer if call else None)


def install(agent_class: type) -> None:
    """Wrap the agent class and the SDK's create methods. Everything is at class level: children are covered too."""
    _number_agents(agent_class)
    _tag_clients(agent_class)
    _name_model_calls()
    _name_mcp_calls()


def _number_agents(agent_class: Any) -> None:
    plain_init, plain_run = agent_class.__init__, agent_class.run_conversation

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        parent, call = _agent.get(), _call.get()
        self._hf_who = {
            "agent": f"a{next(_numbers)}",
            "parent": of_agent(parent)["agent"],
            "spawned_by": call.id if parent is not None and call else None,
        }
        plain_init(self, *args, **kwargs)

    def run_conversation(self: Any, *args: Any, **kwargs: Any) -> Any:
        agent, call = _agent.set(self), _call.set(None)
        try:
            return plain_run(self, *args, **kwargs)
        finally:
            _call.reset(call)
            _agent.reset(agent)

    agent_class.__init__, agent_class.run_conversation = init, run_conversation


def _tag_clients(agent_class: Any) -> None:
    plain = agent_class._create_openai_client

    def create(self: Any, client_kwargs: dict[str, Any], *, reason: str, shared: bool) -> Any:
        client = plain(self, client_kwargs, reason=reason, shared=shared)
        if client is not None:
            client._hf_owner = (self, reason)
        return client

    agent_class._create_openai_client = create


def _model_caller(completions: Any) -> Who:
    owner = getattr(completions._client, "_hf_owner", None)
    if owner is None:
        return {**current(), "kind": "auxiliary"}
    agent, reason = owner
    # The client that is made with the agent is used for nothing but the summary at the turn limit.
    return {**of_agent(agent), "kind": "main" if reason == "chat_completion_request" else "summary"}


def _name_model_calls() -> None:
    """The one seam that sees every model call: main, summary, children, auxiliary. It also keeps all of them whole."""
    from openai.resources.chat.completions.completions import AsyncCompletions, Completions

    plain, plain_async = Completions.create, AsyncCompletions.create

    def create(self: Any, *args: Any, **kwargs: Any) -> Any:
        with speaking_as(_model_caller(self)):
            return plain(self, *args, **_not_streamed(kwargs))

    async def create_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        with speaking_as(_model_caller(self)):
            return await plain_async(self, *args, **_not_streamed(kwargs))

    Completions.create, AsyncCompletions.create = create, create_async  # type: ignore[method-assign]


def _not_streamed(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in ("stream", "stream_options")}


def _name_mcp_calls() -> None:
    """An MCP request is made in the caller's context, but posted by a task of the transport: the message carries it."""
    from mcp.client.streamable_http import StreamableHTTPTransport
    from mcp.shared.message import SessionMessage

    plain_init, plain_post = SessionMessage.__init__, StreamableHTTPTransport._handle_post_request

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain_init(self, *args, **kwargs)
        self._hf_who = current()

    async def post(self: Any, context: Any) -> None:
        with speaking_as(getattr(context.session_message, "_hf_who", None) or current()):
            await plain_post(self, context)

    SessionMessage.__init__ = init  # type: ignore[method-assign]
    StreamableHTTPTransport._handle_post_request = post  # type: ignore[method-assign]
