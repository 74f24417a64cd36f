"""The runner host as an ordinary process, with the real Hermes, against a scripted worker.

Run: .venv/bin/python -m unittest discover worker/runner/tests
"""

from __future__ import annotations

import json
import os
import signal
import sys
import unittest
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fake_worker import Answer, FakeWorker, Run, say, use  # noqa: E402

LIMIT_S = 60


def tools_of(request: bytes) -> set[str]:
    return {tool["function"]["name"] for tool in json.loads(request)["tools"]}


def two_step(first: Answer) -> Any:
    return lambda number, _request: first if number == 1 else say("done")


class HostTest(unittest.TestCase):
    worker: FakeWorker

    @classmethod
    def setUpClass(cls) -> None:
        cls.worker = FakeWorker()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.worker.close()

    def finish(self, run: Run) -> dict[str, Any]:
        self.assertTrue(run.exited.wait(LIMIT_S), "the activation did not end")
        self.assertTrue(run.of("result"), run.exit)
        return run.claim

    def test_ready_says_what_it_is(self) -> None:
        self.assertEqual(self.worker.ready["hermes"], "0.19.0")
        self.assertIs(self.worker.ready["uids"], False)

    def test_a_plain_answer_completes(self) -> None:
        run = self.worker.start(lambda *_: say("hi there"))
        claim = self.finish(run)
        self.assertEqual((claim["status"], claim["final"], run.exit["rc"]), ("completed", "hi there", 0))
        self.assertEqual(run.of("model")[0].head["who"]["kind"], "main")
        self.assertEqual([m.head["status"] for m in run.of("event", "agent_end")], ["completed"])
        request = json.loads(run.requests[0])
        self.assertEqual(request["max_tokens"], 512)
        self.assertNotIn("stream", request)

    def test_the_prompt_describes_the_task_sandbox_and_no_backend(self) -> None:
        run = self.worker.start(lambda *_: say("ok"))
        self.finish(run)
        prompt = json.loads(run.requests[0])["messages"][0]["content"]
        self.assertIn("Host: Linux (6.1)\nUser home directory: /root\nCurrent working directory: /tmp", prompt)
        self.assertNotIn("docker", prompt.lower())
        self.assertNotIn("Terminal backend", prompt)

    def test_request_settings_and_history_reach_the_model(self) -> None:
        overrides = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "extra_body": {"chat_template_kwargs": {"x": 1}}}
        history = [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "second", "reasoning_content": "because"},
        ]
        run = self.worker.start(lambda *_: say("ok"), request_overrides=overrides, history=history)
        self.finish(run)
        request = json.loads(run.requests[0])
        self.assertEqual((request["temperature"], request["top_p"], request["seed"]), (0.5, 0.9, 7))
        self.assertEqual(request["chat_template_kwargs"], {"x": 1})
        self.assertEqual([m["content"] for m in request["messages"][1:]], ["first", "second", "hello"])
        self.assertEqual(request["messages"][2]["reasoning_content"], "because")

    def test_a_terminal_command_runs_at_the_worker(self) -> None:
        run = self.worker.start(two_step(use("terminal", command="echo $((6*7))")))
        self.assertEqual(self.finish(run)["status"], "completed")
        head = run.of("exec")[0].head
        self.assertEqual((head["who"]["call"], head["who"]["tool"], head["internal"]), ("call_1", "terminal", False))
        self.assertIn("42", json.loads(run.requests[1])["messages"][-1]["content"])
        self.assertEqual([m.head["call"] for m in run.of("event", "tool_end")], ["call_1"])

    def test_commands_that_hermes_makes_are_marked(self) -> None:
        run = self.worker.start(two_step(use("read_file", path="/etc/hostname")))
        self.finish(run)
        self.assertTrue(run.of("exec"))
        self.assertTrue(all(m.head["internal"] for m in run.of("exec")))

    def test_a_withheld_tool_is_not_offered_and_does_not_become_its_neighbour(self) -> None:
        run = self.worker.start(two_step(use("search_files", pattern="x")), disabled_tools=["search_files"])
        self.finish(run)
        self.assertNotIn("search_files", tools_of(run.requests[0]))
        self.assertIn("read_file", tools_of(run.requests[0]))
        self.assertFalse(run.of("event", "tool_repaired"))

    def test_a_repaired_tool_name_is_told(self) -> None:
        run = self.worker.start(two_step(use("Terminal_tool", command="true")))
        self.finish(run)
        head = run.of("event", "tool_repaired")[0].head
        self.assertEqual((head["call"], head["asked"], head["ran"]), ("call_1", "Terminal_tool", "terminal"))

    def test_an_mcp_tool_is_called_through_the_worker_by_name_of_the_caller(self) -> None:
        run = self.worker.start(two_step(use("mcp__weather__get_weather")), mcp={"weather": {"required": True}})
        self.assertEqual(self.finish(run)["status"], "completed")
        self.assertIn("sunny", json.loads(run.requests[1])["messages"][-1]["content"])
        call = next(m for m in run.of("mcp") if b'"tools/call"' in (m.body or b""))
        self.assertEqual((call.head["who"]["agent"], call.head["who"]["call"]), ("a0", "call_1"))

    def test_a_required_mcp_server_that_is_down_fails_before_any_model_call(self) -> None:
        run = self.worker.start(lambda *_: say("no"), mcp={"dead": {"required": True}})
        claim = self.finish(run)
        self.assertEqual((claim["status"], run.exit["rc"], run.requests), ("setup_failed", 3, []))
        self.assertEqual(claim["mcp"][0]["server"], "dead")

    def test_an_optional_mcp_server_that_is_down_is_told(self) -> None:
        run = self.worker.start(lambda *_: say("ok"), mcp={"dead": {"required": False}})
        self.assertEqual(self.finish(run)["status"], "completed")
        self.assertEqual(run.of("event", "mcp_missing")[0].head["server"], "dead")

    def test_mcp_tools_that_collide_fail_before_any_model_call(self) -> None:
        run = self.worker.start(lambda *_: say("no"), mcp={"twin": {"required": True}})
        claim = self.finish(run)
        self.assertEqual((claim["status"], run.requests), ("setup_failed", []))
        self.assertIn("mcp__twin__get_weather", claim["mcp"][0]["error"])

    def test_a_long_mcp_result_is_kept_in_the_sandbox_though_no_command_has_run(self) -> None:
        run = self.worker.start(two_step(use("mcp__long__get_weather")), mcp={"long": {"required": True}})
        self.assertEqual(self.finish(run)["status"], "completed")
        self.assertTrue(any("and so on" in m.head.get("stdin", "") for m in run.of("exec")))

    def test_a_background_process_is_started_by_the_shell_that_there_is(self) -> None:
        def model(number: int, request: dict[str, Any]) -> Answer:
            if number == 1:
                return use("terminal", command="echo from-behind", background=True)
            if number == 2:
                session = json.loads(request["messages"][-1]["content"])["session_id"]
                return use("process", call="call_2", action="wait", session_id=session, timeout=10)
            return say(request["messages"][-1]["content"])

        run = self.worker.start(model, shell="sh")
        self.assertIn("from-behind", self.finish(run)["final"])
        spawn, poll = run.of("exec")[0].head, run.of("exec")[1].head
        self.assertTrue(spawn["spawn"])
        self.assertIn("( sh -lc ", spawn["command"])
        self.assertEqual((poll["internal"], poll["who"]["agent"], poll["who"]["call"]), (True, "a0", "call_1"))

    def test_a_delegated_child_is_known_by_the_call_that_made_it(self) -> None:
        def model(number: int, request: dict[str, Any]) -> Answer:
            if number == 1:
                return use("delegate_task", call="call_d", goal="do it", context="none")
            return say(f"answer {number}")

        run = self.worker.start(model, toolsets=["terminal", "delegation"])
        self.assertEqual(self.finish(run)["status"], "completed")
        who = run.of("model")[1].head["who"]
        self.assertEqual((who["agent"], who["parent"], who["spawned_by"]), ("a1", "a0", "call_d"))
        self.assertEqual(len(run.of("event", "agent_start")), 2)

    def test_a_summary_that_fails_is_told(self) -> None:
        def model(number: int, _request: dict[str, Any]) -> Answer:
            return use("terminal", command="true") if number == 1 else ({"status": 500, "headers": {}}, b"{}")

        run = self.worker.start(model, max_turns=1)
        claim = self.finish(run)
        self.assertTrue(claim["summary_failed"], claim)
        self.assertEqual(claim["status"], "incomplete")
        self.assertEqual(run.of("model")[1].head["who"]["kind"], "summary")

    def test_sigterm_in_a_model_call_gives_an_interrupted_claim(self) -> None:
        run = self.worker.start(lambda *_: None)
        self.assertTrue(run.asked.wait(LIMIT_S))
        self.worker.kill(run, signal.SIGTERM)
        claim = self.finish(run)
        self.assertEqual((claim["status"], run.exit["rc"]), ("interrupted", 143))
        self.assertEqual(len(run.of("cancel")), 1)

    def test_sigterm_in_a_command_cancels_it(self) -> None:
        run = self.worker.start(two_step(use("terminal", command="sleep 5")))
        self.assertTrue(run.asked.wait(LIMIT_S))
        while not run.of("exec"):
            self.assertFalse(run.exited.wait(0.01))
        self.worker.kill(run, signal.SIGTERM)
        self.assertEqual(self.finish(run)["status"], "interrupted")
        self.assertEqual(run.of("cancel")[0].head["ref"], run.of("exec")[0].head["id"])

    def test_sigterm_before_the_job_ends_it_at_once(self) -> None:
        run = self.worker.start(lambda *_: say("no"))
        self.worker.kill(run, signal.SIGTERM)
        self.assertTrue(run.exited.wait(LIMIT_S))
        self.assertEqual(run.exit["rc"], 143)

    def test_one_that_is_killed_leaves_the_others_alone(self) -> None:
        victim = self.worker.start(lambda *_: None)
        other = self.worker.start(two_step(use("terminal", command="sleep 0.5")))
        self.assertTrue(victim.asked.wait(LIMIT_S))
        self.worker.kill(victim, signal.SIGKILL)
        self.assertTrue(victim.exited.wait(LIMIT_S))
        self.assertEqual((victim.exit["rc"], victim.exit["oom"]), (-9, False))
        self.assertEqual(self.finish(other)["status"], "completed")

    def test_a_home_has_one_activation_at_a_time(self) -> None:
        first = self.worker.start(lambda *_: None, home="same")
        second = self.worker.start(lambda *_: say("no"), home="same")
        self.assertTrue(second.exited.wait(LIMIT_S))
        self.assertIn("home same belongs to a running activation", second.exit["stderr"])
        self.worker.kill(first, signal.SIGKILL)
        self.assertTrue(first.exited.wait(LIMIT_S))

    def test_twenty_at_once(self) -> None:
        def model_of(index: int) -> Any:
            first = use("terminal", command=f"echo mark-{index}")
            return lambda number, request: first if number == 1 else say(request["messages"][-1]["content"])

        runs = [self.worker.start(model_of(index)) for index in range(20)]
        for index, run in enumerate(runs):
            self.assertIn(f"mark-{index}", self.finish(run)["final"])

    def test_two_runs_ask_the_model_the_same_byte_for_byte(self) -> None:
        model = two_step(use("terminal", command="echo same"))
        first, second = (self.worker.start(model, home=home) for home in ("one", "two"))
        self.finish(first)
        self.finish(second)
        self.assertEqual(first.requests, second.requests)

    def test_odd_text_survives(self) -> None:
        message = b'{"role":"assistant","content":"a\\ud800b \\u0007"}'
        body = b'{"choices":[{"message":' + message + b',"finish_reason":"stop"}],\n\t"x":12345678901234567890}'
        run = self.worker.start(lambda *_: ({"status": 200, "headers": {"content-encoding": "gzip"}}, body))
        claim = self.finish(run)
        self.assertEqual(claim["status"], "completed", claim)


if __name__ == "__main__":
    unittest.main()
