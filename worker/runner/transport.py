"""Every httpx client of the process ends in the channel: httpx's own transports are replaced at class level.

One seam for the OpenAI SDK (root, summary, children, auxiliary clients), for the MCP client and for whatever else
Hermes asks of the network. No TLS context and no connection pool is ever made, which is most of what a model call
costs in plain Hermes.
"""

from __future__ import annotations

import threading
from typing import Any

import httpx
from httpx._transports import default

import identity
from channel import Channel, ChannelError, Message, Pending

MODEL_URL = "http://model.hf.invalid/v1"
MCP_URL = "http://mcp.hf.invalid/"

_MODEL_HOST = httpx.URL(MODEL_URL).host
_MCP_HOST = httpx.URL(MCP_URL).host

# The body comes decoded and whole: headers that speak of its coding would make httpx decode it again.
_NOT_PASSED_ON = frozenset({"content-encoding", "content-length", "transfer-encoding", "connection"})


def _route(request: httpx.Request) -> tuple[str, dict[str, Any]]:
    """The op and the fields of a request. What is neither model nor MCP is refused and recorded by the worker."""
    path = request.url.path
    if request.url.host == _MODEL_HOST:
        return "model", {"path": path.removeprefix("/v1"), "method": request.method}
    if request.url.host == _MCP_HOST:
        return "mcp", {"server": path.strip("/"), "method": request.method}
    return "http", {"url": str(request.url), "method": request.method}


def _response(message: Message, request: httpx.Request) -> httpx.Response:
    headers = {
        name: value
        for name, value in (message.head.get("headers") or {}).items()
        if name.lower() not in _NOT_PASSED_ON
    }
    if message.body is not None:
        headers.setdefault("content-type", "application/json")
    return httpx.Response(message.head["status"], headers=headers, content=message.body or b"", request=request)


def install(channel: Channel, agent_class: Any) -> None:
    """Replace the transports. Called in the child, before anything builds a client."""

    def init(self: Any, *_args: Any, **_kwargs: Any) -> None:
        self._pool = None  # Hermes looks for sockets below it
        self._hf_lock = threading.Lock()
        self._hf_pending: set[Pending] | None = set()

    def handle_request(self: Any, request: httpx.Request) -> httpx.Response:
        op, fields = _route(request)
        body = None if op == "http" else request.read() or None
        try:
            pending = channel.begin(op, body, who=identity.current(), **fields)
        except ChannelError as error:
            raise httpx.WriteError(str(error), request=request) from error
        if not _remember(self, pending):
            channel.cancel(pending.id)
            raise httpx.ReadError("the client was closed", request=request)
        pending.event.wait()
        _forget(self, pending)
        if pending.answer is None:
            raise httpx.ReadError("the client was closed", request=request)
        return _response(pending.answer, request)

    def close(self: Any) -> None:
        _give_up(channel, self, closed=True)

    async def handle_async_request(self: Any, request: httpx.Request) -> httpx.Response:
        op, fields = _route(request)
        body = None if op == "http" else (await request.aread()) or None
        try:
            answer = await channel.call_async(op, body, who=identity.current(), **fields)
        except ChannelError as error:
            raise httpx.WriteError(str(error), request=request) from error
        return _response(answer, request)

    async def aclose(self: Any) -> None:
        return None

    async def aexit(self: Any, *_: object) -> None:
        return None

    async def aenter(self: Any) -> Any:
        return self

    sync: Any = default.HTTPTransport
    sync.__init__, sync.handle_request, sync.close = init, handle_request, close
    sync.__enter__ = lambda self: self
    sync.__exit__ = lambda self, *_: self.close()
    asynchronous: Any = default.AsyncHTTPTransport
    asynchronous.__init__, asynchronous.handle_async_request, asynchronous.aclose = init, handle_async_request, aclose
    asynchronous.__aenter__, asynchronous.__aexit__ = aenter, aexit

    def force_close(client: Any) -> int:
        """How Hermes gives a model call up, from another thread. It would shut the sockets of the client's pool."""
        http = getattr(client, "_client", None)
        transports = [getattr(http, "_transport", None), *getattr(http, "_mounts", {}).values()]
        ours = [transport for transport in transports if isinstance(transport, default.HTTPTransport)]
        return sum(_give_up(channel, transport, closed=False) for transport in ours)

    agent_class._force_close_tcp_sockets = staticmethod(force_close)


def _give_up(channel: Channel, transport: Any, *, closed: bool) -> int:
    """The waiting threads get a read error, as from a socket that was shut. Says how many there were."""
    with transport._hf_lock:
        given_up = transport._hf_pending or set()
        transport._hf_pending = None if closed or transport._hf_pending is None else set()
    for pending in given_up:
        channel.cancel(pending.id)
        pending.event.set()
    return len(given_up)


def _remember(transport: Any, pending: Pending) -> bool:
    with transport._hf_lock:
        if transport._hf_pending is None:
            return False
        transport._hf_pending.add(pending)
        return True


def _forget(transport: Any, pending: Pending) -> None:
    with transport._hf_lock:
        if transport._hf_pending is not None:
            transport._hf_pending.discard(pending)
