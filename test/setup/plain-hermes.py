"""A plain Hermes, as its user would start it: `plain-hermes.py BASE_URL MODEL TASK` asks once, and ends."""

import json
import os
import sys

base_url, model, task = sys.argv[1:]
home = "/tmp/plain-home"
os.makedirs(home, exist_ok=True)
os.environ.update(HERMES_HOME=home, HERMES_DISABLE_LAZY_INSTALLS="1", HERMES_YOLO_MODE="1", TERMINAL_CWD=os.getcwd())
with open(f"{home}/config.yaml", "w", encoding="utf-8") as file:
    json.dump(
        {
            "model": {
                "default": model,
                "provider": "custom",
                "base_url": base_url,
                "api_key": "none",
                "context_length": 131072,
            },
            "terminal": {"backend": "local", "cwd": os.getcwd(), "timeout": 180},
            "_config_version": 33,
        },
        file,
    )

from run_agent import AIAgent  # noqa: E402

agent = AIAgent(
    base_url=base_url,
    api_key="none",
    provider="custom",
    api_mode="chat_completions",
    model=model,
    max_tokens=8192,
    enabled_toolsets=["terminal", "file"],
    quiet_mode=True,
    skip_context_files=True,
    skip_memory=True,
)
agent.run_conversation(task, None, [])
os._exit(0)
