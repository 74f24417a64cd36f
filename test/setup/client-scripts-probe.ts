import { chmod, mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { ROOT } from './processes.ts';

/** A runner whose Hermes has one more tool, `probe_clients`: it asks the model in every way that is no agent's own. */
export const PROBING_RUNNER = `
import json, os, runpy, sys, threading
host = sys.argv[-1]
sys.path.insert(0, os.path.dirname(host))
import hermes_setup

TASKS = ("compression", "vision", "web_extract", "title_generation", "approval", "mcp", "session_search", "skills_hub",
         "memory_query_rewrite", "background_review", "curator", None)

def asking(text):
    return [{"role": "user", "content": f"AUX {text}"}]

def said(reply):
    return reply.choices[0].message.content

def probe(args, **_):
    import httpx, model_tools, openai
    from agent.auxiliary_client import async_call_llm, call_llm
    model, got = args["model"], {}
    for task in TASKS:
        got[f"task {task}"] = said(call_llm(task=task, messages=asking(f"task {task}")))
    thread = threading.Thread(
        target=lambda: got.update(thread=said(call_llm(task="approval", messages=asking("thread")))))
    thread.start()
    thread.join()
    async def asynchronous():
        got["async"] = said(await async_call_llm(task="web_extract", messages=asking("async")))
        got["bare async"] = said(
            await openai.AsyncOpenAI().chat.completions.create(model=model, messages=asking("bare async"), stream=True))
    model_tools._run_async(asynchronous())
    got["streamed"] = said(call_llm(task="compression", messages=asking("streamed"), stream=True))
    got["bare"] = said(openai.OpenAI().chat.completions.create(model=model, messages=asking("bare")))
    got["bare streamed"] = said(
        openai.OpenAI().chat.completions.create(model=model, messages=asking("bare streamed"), stream=True))
    got["elsewhere"] = httpx.get("http://elsewhere.invalid/x").status_code
    return json.dumps(got)

def register():
    from tools.registry import registry
    schema = {"name": "probe_clients", "description": "Asks.", "parameters": {
        "type": "object", "properties": {"model": {"type": "string"}}, "required": ["model"]}}
    registry.register(name="probe_clients", toolset="terminal", schema=schema, handler=probe)

plain = hermes_setup._patch
hermes_setup._patch = lambda: (plain(), register())
runpy.run_path(host, run_name="__main__")
`;

/** Ways in which the probe asks, by the text of the question. */
export const PROBED: readonly string[] = [
  ...'compression vision web_extract title_generation approval mcp session_search skills_hub memory_query_rewrite background_review curator None'
    .split(' ')
    .map((task) => `task ${task}`),
  'thread',
  'async',
  'bare async',
  'streamed',
  'bare',
  'bare streamed',
];

/** A Python for the local runner that runs the program, which may change the runner before it starts it. */
export async function runnerPython(program: string): Promise<{ readonly folder: string; readonly python: string }> {
  const folder = await mkdtemp(path.join(tmpdir(), 'hf-probe-'));
  const file = path.join(folder, 'changed_host.py');
  const python = path.join(folder, 'python');
  await writeFile(file, program);
  await writeFile(python, `#!/bin/sh\nexec ${path.join(ROOT, '.venv/bin/python')} -u ${file} "$2"\n`);
  await chmod(python, 0o755);
  return { folder, python };
}
