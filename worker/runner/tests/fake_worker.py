"""The worker's end of PROTOCOL.md, as small as it can be: mux and lines, a scripted model, a shell, an MCP server."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from typing import Any, Callable

RUNNER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, RUNNER)

from channel import Message, decode_line, encode_line  # noqa: E402
from mux import CHUNK, CREDIT, DATA, EXIT, KILL, OPEN, READY, FrameReader, frame  # noqa: E402

Answer = tuple[dict[str, Any], bytes | None] | None

MCP_TOOL = {"name": "get_weather", "description": "Weather.", "inputSchema": {"type": "object", "properties": {}}}


def job(**changes: Any) -> dict[str, Any]:
    plain = {
        "model": "scripted", "max_tokens": 512, "max_turns": 8, "context_length": 131072, "compaction": False,
        "delegation_max_turns": 5, "toolsets": ["terminal", "file"], "disabled_tools": [], "system": None,
        "cwd": "/tmp", "temp_dir": "/tmp", "shell": "bash", "tool_timeout_s": 30, "session": "s1", "request_overrides": None, "mcp": {},
        "probe": "OS: Linux 6.1\nUser: root\nHome: /root\nWorking directory: /tmp", "resident_shell": False,
        "pin": {"now": "2026-01-02T03:04:05+00:00", "seed": "seed"},
    }  # fmt: skip
    return {**plain, **changes}


def completion(message: dict[str, Any]) -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    body = {"id": "c1", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice]}
    return {"status": 200, "headers": {}}, json.dumps(body).encode()


def say(text: str) -> Answer:
    return completion({"content": text})


def use(tool: str, call: str = "call_1", **arguments: Any) -> Answer:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return completion({"content": None, "tool_calls": [{"id": call, "type": "function", "function": function}]})


class Run:
    """One activation as the worker sees it. `model` is asked with (number of the call, request); None: no answer."""

    def __init__(self, model: Callable[[int, dict[str, Any]], Answer]) -> None:
        self.model = model
        self.buffer = bytearray()
        self.lines: list[Message] = []
        self.requests: list[bytes] = []
        self.asked = threading.Event()
        self.exited = threading.Event()
        self.exit: dict[str, Any] = {}

    def of(self, op: str, kind: str | None = None) -> list[Message]:
        return [m for m in self.lines if m.head["op"] == op and kind in (None, m.head.get("kind"))]

    @property
    def claim(self) -> dict[str, Any]:
        message = self.of("result")[-1]
        return {**message.head, **json.loads(message.body or b"{}")}


class FakeWorker:
    def __init__(self, command: list[str] | None = None, **environment: str) -> None:
        self._root = tempfile.TemporaryDirectory()
        env = {**os.environ, "HF_ROOT": self._root.name, "HF_SILENCE": "0", **environment}
        command = command or [sys.executable, "-u", os.path.join(RUNNER, "host.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self._lock = threading.Lock()
        self._runs: dict[int, Run] = {}
        self._ready: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.ready = self._ready.get(timeout=60)

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self._root.cleanup()

    def start(self, model: Callable[[int, dict[str, Any]], Answer], user: str = "hello", **changes: Any) -> Run:
        history = changes.pop("history", [])
        run, activation = Run(model), len(self._runs) + 1
        self._runs[activation] = run
        self._send(activation, OPEN, str(changes.pop("home", f"h{activation}")).encode())
        self._line(activation, job(**changes), json.dumps({"user": user, "history": history}).encode())
        return run

    def kill(self, run: Run, number: int) -> None:
        self._send(next(a for a, r in self._runs.items() if r is run), KILL, bytes([number]))

    def _send(self, activation: int, kind: int, payload: bytes) -> None:
        assert self.process.stdin
        with self._lock:
            self.process.stdin.write(frame(activation, kind, payload))
            self.process.stdin.flush()

    def _line(self, activation: int, head: dict[str, Any], body: bytes | None) -> None:
        line = encode_line(head, body)
        for start in range(0, len(line), CHUNK):
            self._send(activation, DATA, line[start : start + CHUNK])

    def _read(self) -> None:
        assert self.process.stdout
        reader = FrameReader()
        while data := os.read(self.process.stdout.fileno(), 1 << 16):
            for activation, kind, payload in reader.feed(data):
                if kind == READY:
                    self._ready.put(json.loads(payload))
                elif kind == EXIT:
                    self._runs[activation].exit = json.loads(payload)
                    self._runs[activation].exited.set()
                elif kind == DATA:
                    self._send(activation, CREDIT, len(payload).to_bytes(4, "big"))
                    self._on_data(activation, payload)

    def _on_data(self, activation: int, payload: bytes) -> None:
        run = self._runs[activation]
        run.buffer += payload
        while (end := run.buffer.find(b"\n")) >= 0:
            message = decode_line(bytes(run.buffer[: end + 1]))
            del run.buffer[: end + 1]
            run.lines.append(message)
            if "id" in message.head:
                threading.Thread(target=self._answer, args=(activation, run, message), daemon=True).start()

    def _answer(self, activation: int, run: Run, message: Message) -> None:
        answer: Answer = {"status": 403}, b'{"error": "refused"}'
        op = message.head["op"]
        if op == "model":
            run.requests.append(message.body or b"")
            answer = run.model(len(run.requests), json.loads(message.body or b"{}"))
            run.asked.set()
        elif op == "exec":
            answer = _execute(message.head), None
        elif op == "mcp":
            answer = _mcp(message)
        if answer is not None:
            self._line(activation, {"id": message.head["id"], **answer[0]}, answer[1])


def _execute(head: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        ["bash", "-c", head["command"]], cwd=head["cwd"], input=head.get("stdin", "").encode(), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=head["timeout_s"],
    )  # fmt: skip
    return {"output": done.stdout.decode("utf-8", "replace"), "code": done.returncode, "cwd": head["cwd"]}


def _mcp(message: Message) -> Answer:
    if message.head["server"] == "dead":
        return {"status": 502}, b"{}"
    request = json.loads(message.body or b"{}")
    result: dict[str, Any] = {}
    if "id" not in request:
        return {"status": 202}, None
    if request["method"] == "initialize":
        version = request["params"]["protocolVersion"]
        info = {"name": "weather", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif request["method"] == "tools/list":
        twin = [{**MCP_TOOL, "name": "get-weather"}] if message.head["server"] == "twin" else []
        result = {"tools": [MCP_TOOL, *twin]}
    elif request["method"] == "tools/call":
        text = "sunny, 21 degrees" + " and so on" * (20_000 if message.head["server"] == "long" else 0)
        result = {"content": [{"type": "text", "text": text}]}
    return {"status": 200}, json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
