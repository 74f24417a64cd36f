"""The runner host: Hermes imported ahead, one fork per activation, and a relay between them and the worker.

PID 1 of the runner container, or a plain child process of the worker. Its stdin and stdout carry mux frames
(PROTOCOL.md).

Settings: HF_ROOT (where homes are made), HF_SILENCE (seconds without input after which the host ends; 0: never),
HF_UID_BASE, HF_UIDS=off.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import sys
import threading
import time

STARTED_AT = time.time()

# The order of sets shows up in prompts, and two runs of one rollout must give the same ones. Read at start only.
if os.environ.get("PYTHONHASHSEED") != "0":
    os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import child  # noqa: E402
import hermes_setup  # noqa: E402
from accounts import Accounts  # noqa: E402
from relay import Host  # noqa: E402


def main() -> None:
    child.deny_inspection()
    accounts = Accounts.from_environment()
    # Writable for the group: accounts.py says why.
    root = os.environ.get("HF_ROOT", "/tmp/a")
    os.makedirs(root, exist_ok=True)
    os.chmod(root, 0o771 if accounts.on else 0o700)
    own_home = os.path.join(root, ".host")
    os.makedirs(own_home, mode=0o700, exist_ok=True)
    hermes_setup.preload(own_home)
    if threading.active_count() != 1:
        raise SystemExit(f"runner host: importing Hermes has started threads: {threading.enumerate()}")
    gc.collect()
    gc.freeze()
    Host(root, float(os.environ.get("HF_SILENCE", "20")), accounts).run(
        {
            "s": round(time.time() - STARTED_AT, 3),
            "modules": len(sys.modules),
            "hermes": importlib.metadata.version("hermes-agent"),
            "python": platform.python_version(),
            "uids": accounts.on,
        }
    )


if __name__ == "__main__":
    main()
