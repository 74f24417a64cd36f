"""The environment that the system prompt describes: the task sandbox, in the words of a Hermes that runs inside it."""

from __future__ import annotations

import re
from typing import Any

_FIELD = re.compile(r"^\s*(?P<name>OS|User|Home|Working directory): *(?P<value>.*?)\s*$")


def describe(probe: str) -> str:
    """The block for a probe. Text that is no list of the probe's fields is the block itself, and used as it is."""
    fields: dict[str, str] = {}
    for line in probe.splitlines():
        match = _FIELD.match(line)
        if match is None:
            return probe.strip("\n")
        fields[match["name"]] = match["value"]
    system, _, release = fields.get("OS", "").partition(" ")
    lines = []
    if system:
        lines.append(f"Host: {system} ({release})" if release else f"Host: {system}")
    if fields.get("Home"):
        lines.append(f"User home directory: {fields['Home']}")
    if fields.get("Working directory"):
        lines.append(f"Current working directory: {fields['Working directory']}")
    return "\n".join(lines)


def install(probe: str) -> None:
    """Instead of Hermes' text for remote backends, which names one that is not there and where Hermes runs."""
    import agent.prompt_builder
    import run_agent

    text = describe(probe)

    def hints(*_args: Any, **_kwargs: Any) -> str:
        return text

    agent.prompt_builder.build_environment_hints = hints
    run_agent.build_environment_hints = hints
