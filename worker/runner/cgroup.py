"""Whether the kernel killed a process for want of memory, from the counter of the cgroup that we live in."""

from __future__ import annotations

_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Version 2 and version 1, as a container sees its own."""


def _oom_kills() -> int:
    for path in _FILES:
        try:
            with open(path, encoding="ascii") as file:
                for line in file:
                    name, _, value = line.partition(" ")
                    if name == "oom_kill":
                        return int(value)
        except (OSError, ValueError):
            continue
    return 0


class OomWatch:
    """Each kill that the kernel has counted explains one death."""

    def __init__(self) -> None:
        self._explained = _oom_kills()

    def explains_a_kill(self) -> bool:
        if _oom_kills() <= self._explained:
            return False
        self._explained += 1
        return True
