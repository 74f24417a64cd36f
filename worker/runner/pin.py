"""Pins what would make two runs of one rollout differ, so that the Model Server's prefix cache stays warm across
rollouts and a journal can be replayed.

Ids come from a hash of (seed, agent, tool call, n): a seeded generator would not do, since threads draw in any order.
"""

from __future__ import annotations

import datetime
import hashlib
import pathlib
import random
import re
import secrets
import threading
import uuid
from typing import Any, Callable

import identity

HOME_IN_PROMPTS = "/hermes"

_DURATION = re.compile(r'"((?:total_)?duration_seconds)": ?[0-9.]+')


class _Draws:
    """Bytes that depend on who draws, and on how often they drew before."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def bytes(self, length: int) -> bytes:
        who = identity.current()
        key = f"{self._seed}|{who.get('agent')}|{who.get('call')}"
        with self._lock:
            count = self._counts[key] = self._counts.get(key, 0) + 1
        return hashlib.sha256(f"{key}|{count}".encode("utf-8", "backslashreplace")).digest()[:length]


def install(pin: dict[str, Any], home: str) -> None:
    _pin_date(pin["now"])
    _pin_ids(str(pin["seed"]))
    _pin_texts(home)


def _pin_date(now: str) -> None:
    import hermes_time

    fixed = datetime.datetime.fromisoformat(now.replace("Z", "+00:00"))
    hermes_time.now = lambda *_args, **_kwargs: fixed


def _pin_ids(seed: str) -> None:
    draws = _Draws(seed)
    random.seed(seed)
    uuid.uuid4 = lambda: uuid.UUID(bytes=draws.bytes(16), version=4)
    secrets.token_urlsafe = lambda nbytes=None: draws.bytes(32).hex()  # type: ignore[misc,assignment]
    secrets.token_hex = lambda nbytes=None: draws.bytes(min(nbytes or 32, 32)).hex()


def _pin_texts(home: str) -> None:
    import agent.system_prompt
    import tools.code_execution_tool
    import tools.delegate_tool

    agent.system_prompt.get_hermes_home = lambda: pathlib.Path(HOME_IN_PROMPTS)

    def still(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if not isinstance(result, str):
                return result
            return _DURATION.sub(r'"\1": 0', result).replace(home, HOME_IN_PROMPTS)

        return call

    tools.delegate_tool.delegate_task = still(tools.delegate_tool.delegate_task)
    tools.code_execution_tool._execute_remote = still(tools.code_execution_tool._execute_remote)
