"""Connecting the granted MCP servers, before the agent is built: its list of tools is a snapshot.

The endpoints are the worker's, behind the channel. Hermes logs what goes wrong here and goes on without the tool, so
everything is checked afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from channel import Channel

Problem = dict[str, str]


@dataclass
class Connected:
    """What is there after connecting: problems that forbid the activation, and every tool that must be offered."""

    problems: list[Problem] = field(default_factory=list)
    tools: dict[str, str] = field(default_factory=dict)
    """Hermes' name of a tool, to its server."""


def connect(channel: Channel, servers: dict[str, dict[str, Any]]) -> Connected:
    result = Connected()
    if not servers:
        return result
    from tools.mcp_tool import discover_mcp_tools, get_mcp_status

    discover_mcp_tools()
    states = {state["name"]: state for state in get_mcp_status()}
    for name, grant in servers.items():
        state = states.get(name) or {}
        if state.get("connected"):
            _collect_tools(name, result)
            continue
        error = str(state.get("error") or state.get("status") or "not known to Hermes")
        if grant.get("required", True):
            result.problems.append({"server": name, "error": error})
        else:
            channel.emit("event", kind="mcp_missing", server=name, error=error)
    return result


def _collect_tools(server: str, result: Connected) -> None:
    """Names are cleaned by Hermes, so that two tools may end up with one; the later one would silently win."""
    from tools.mcp_tool import _servers, mcp_prefixed_tool_name
    from tools.registry import registry

    for tool in _servers[server]._tools:
        name = mcp_prefixed_tool_name(server, tool.name)
        toolset = registry.get_toolset_for_tool(name)
        if name in result.tools:
            other = result.tools[name]
            error = f"tool {tool.name} has the name {name} in Hermes, as another tool of {other} has"
        elif toolset is None:
            error = f"tool {tool.name} is not registered in Hermes as {name}"
        elif not toolset.startswith("mcp-"):
            error = f"tool {tool.name} is shadowed by Hermes' own {name}"
        else:
            result.tools[name] = server
            continue
        result.problems.append({"server": server, "error": error})


def not_offered(connected: Connected, offered: set[str], disabled: set[str]) -> list[Problem]:
    """Tools that are connected, but that the agent would not show to the model."""
    return [
        {"server": server, "error": f"tool {name} is connected, but Hermes does not offer it"}
        for name, server in connected.tools.items()
        if name not in offered and name not in disabled
    ]
