"""Hermes, imported ahead and made fit to run headless: what is the same for every activation.

All of it happens in the host before the first fork, so nothing here may start a thread or build an agent.
PROTOCOL.md says what the worker may rely on; each patch says why it is there.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from typing import Any

from transport import MCP_URL, MODEL_URL

# Some of these are read once, when Hermes is imported.
_ENVIRONMENT = {
    "HERMES_YOLO_MODE": "1",
    "HERMES_DISABLE_LAZY_INSTALLS": "1",
    "HERMES_VERIFY_ON_STOP": "0",
    "HERMES_SKIP_SSL_GUARD": "1",
    "HERMES_API_TIMEOUT": "100000000",
    "HERMES_API_CALL_STALE_TIMEOUT": "100000000",
    "TERMINAL_ENV": "docker",
    "TERMINAL_LIFETIME_SECONDS": "1000000000",
    "OPENAI_BASE_URL": MODEL_URL,
    "OPENAI_API_KEY": "none",
}

# Nothing else of the environment: as a plain process the host has the worker's, with credentials and proxies in it.
_INHERITED = re.compile(r"PATH|LANG|LC_\w+|TZ|LD_LIBRARY_PATH|PYTHON\w+|HF_\w+")

# Besides the obvious ones, all that an activation was seen to import for itself: each costs time in every fork.
_MODULES = """
run_agent model_tools openai openai.resources.chat.completions.completions agent.agent_init agent.agent_runtime_helpers
agent.anthropic_adapter agent.aux_accounting agent.ssl_verify agent.auxiliary_client agent.chat_completion_helpers
agent.coding_context agent.context_compressor agent.conversation_compression agent.conversation_loop
agent.credits_tracker agent.kanban_stop agent.lmstudio_reasoning agent.models_dev agent.moonshot_schema agent.ssl_guard
agent.subdirectory_hints agent.system_prompt agent.tool_executor agent.transports agent.transports.anthropic
agent.transports.bedrock agent.transports.chat_completions agent.transports.codex agent.turn_finalizer
agent.usage_pricing agent.verification_evidence agent.verification_stop agent.verify_hooks acp_adapter.edit_approval
gateway.session_context h11 hermes_cli.codex_models hermes_cli.moa_config hermes_cli.model_normalize hermes_cli.models
hermes_cli.nous_account hermes_cli.nous_subscription hermes_cli.plugins hermes_cli.skin_engine hermes_time httpcore
httpcore._async.connection_pool httpcore._backends.sync httpcore._sync.connection_pool mcp.client.streamable_http
socksio tools.ansi_strip tools.checkpoint_manager tools.code_execution_tool tools.delegate_tool tools.env_passthrough
tools.file_tools tools.hook_output_spill tools.mcp_tool tools.process_registry tools.schema_sanitizer
tools.terminal_tool tools.tool_output_limits tools.tool_search unittest.mock broker_env channel events identity
mcp_setup pin transport
""".split()

_BROKERED = "terminal process read_file write_file patch search_files execute_code".split()

_FOREVER_S = 100_000_000


def config(job: dict[str, Any]) -> dict[str, Any]:
    """config.yaml of one activation: everything that could call out, wait, or add model calls is off."""
    context_length = job["context_length"]
    return {
        # Also the route of auxiliary clients on threads that do not know the running agent.
        "model": {
            "default": job["model"],
            "provider": "custom",
            "base_url": MODEL_URL,
            "api_key": "none",
            "context_length": context_length,
        },
        "fallback_providers": [],
        "providers": {"custom": {"request_timeout_seconds": _FOREVER_S, "stale_timeout_seconds": _FOREVER_S}},
        "toolsets": job["toolsets"],
        "agent": {
            "max_turns": job["max_turns"],
            "api_max_retries": 1,
            "environment_probe": False,
            "verify_on_stop": False,
            "coding_context": "off",
            "image_input_mode": "text",
        },
        "terminal": {"backend": "docker", "cwd": job["cwd"], "timeout": int(job["tool_timeout_s"])},
        "memory": {"memory_enabled": False, "user_profile_enabled": False},
        "skills": {"creation_nudge_interval": 0},
        "curator": {"enabled": False},
        "compression": {"enabled": bool(job["compaction"])},
        "delegation": {"max_iterations": job["delegation_max_turns"]},
        "checkpoints": {"enabled": False},
        "display": {"streaming": False, "turn_completion_explainer": False, "file_mutation_verifier": False},
        "streaming": {"enabled": False},
        "approvals": {"mode": "off"},
        "security": {
            "tirith_enabled": False,
            "allow_lazy_installs": False,
            "allow_private_urls": True,
            "redact_secrets": False,
        },
        "lsp": {"enabled": False, "install_strategy": "off"},
        # Otherwise MCP tools vanish behind a search tool as soon as there are many.
        "tools": {"tool_search": {"enabled": "off"}},
        "model_catalog": {"enabled": False},
        "auxiliary": {
            "transient_retries": 0,
            "title_generation": {"enabled": False},
            "compression": {"context_length": context_length},
        },
        "sessions": {"write_json_snapshots": False},
        "mcp_servers": {name: _mcp_server(name, job) for name in job["mcp"]},
        "_config_version": 33,
    }


def _mcp_server(name: str, job: dict[str, Any]) -> dict[str, Any]:
    return {
        "url": MCP_URL + name,
        "connect_timeout": 60,
        # The worker's limit comes first and is an answer; this one is Hermes' own.
        "timeout": job["tool_timeout_s"] + 60,
        "skip_preflight": True,
        "sampling": {"enabled": False},
        "elicitation": {"enabled": False},
        "tools": {"resources": False, "prompts": False},
    }


_EMPTY_JOB: dict[str, Any] = {
    "model": "none",
    "context_length": 131_072,
    "toolsets": ["terminal"],
    "max_turns": 1,
    "cwd": "/",
    "tool_timeout_s": 180,
    "compaction": False,
    "delegation_max_turns": 1,
    "mcp": {},
}


def preload(home: str) -> None:
    """Import Hermes with `home` as the host's own, and patch it."""
    for name in [name for name in os.environ if not _INHERITED.fullmatch(name)]:
        del os.environ[name]
    os.environ.update(_ENVIRONMENT, HERMES_HOME=home, HOME=home, TMPDIR=home)
    write_config(home, _EMPTY_JOB)
    for module in _MODULES:
        importlib.import_module(module)
    _patch()


def write_config(home: str, job: dict[str, Any]) -> None:
    with open(os.path.join(home, "config.yaml"), "w", encoding="utf-8") as file:
        json.dump(config(job), file)  # JSON is YAML


def _patch() -> None:
    import agent.agent_init
    import agent.subdirectory_hints
    import agent.usage_pricing
    import run_agent
    import tools.mcp_tool
    import tools.terminal_tool
    from tools.registry import registry

    agent_class: Any = run_agent.AIAgent
    # Model servers for training give whole responses only; a refused stream would fail the turn.
    agent_class._disable_streaming = True
    # Two rounds of GETs at the model server, to find out what it is.
    agent.agent_init.query_ollama_num_ctx = lambda *_args, **_kwargs: None
    agent.usage_pricing.fetch_endpoint_model_metadata = lambda *_args, **_kwargs: {}
    # AGENTS.md of sub folders would be added to tool results, although context files are off.
    agent.subdirectory_hints.SubdirectoryHintTracker.check_tool_call = lambda self, *_args, **_kwargs: None
    # A dead server is known at once and not after seven seconds of back-off.
    tools.mcp_tool._MAX_INITIAL_CONNECT_RETRIES = 0
    # Hermes strips the reasoning of most models when it replays a conversation.
    agent_class._copy_reasoning_content_for_api = _keep_reasoning
    agent_class._reapply_reasoning_echo_for_provider = lambda self, messages: 0
    # Whether the tools work is known to the worker. The checks were bound when the tools were registered.
    for name in _BROKERED:
        entry = registry.get_entry(name)
        if entry is not None:
            entry.check_fn = None
    tools.terminal_tool.check_terminal_requirements = lambda: True


def _keep_reasoning(_self: Any, source: dict[str, Any], target: dict[str, Any]) -> None:
    if source.get("role") != "assistant":
        return
    text = source.get("reasoning_content") or source.get("reasoning")
    if isinstance(text, str) and text.strip():
        target["reasoning_content"] = text
    else:
        target.pop("reasoning_content", None)
