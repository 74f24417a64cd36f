import { execFileSync } from 'node:child_process';
import { rm } from 'node:fs/promises';
import { trajectoryOf } from '@hermes-fleet/worker/hermes/trajectory';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  ANSWER,
  ATTACK,
  attackScript,
  CLEVER_KILLS,
  FORGE,
  FORGED_END,
  KILLS,
  LOOK,
  SLOW_SMASHES,
  smashing,
  SMASHES,
} from '../setup/attacks.ts';
import { LYING_RUNNER, PYTHON_ATTACKS } from '../setup/attacks-python.ts';
import { expectTrue } from '../setup/attacks-result.ts';
import { siblingsIn } from '../setup/attacks-siblings.ts';
import { runnerPython } from '../setup/client-scripts-probe.ts';
import { journalOf, taskOf } from '../setup/client-scripts.ts';
import { serverTokens, tokensOf } from '../setup/client-scripts-tokens.ts';
import { QUICK } from '../setup/fleet.ts';
import {
  grantOf,
  type HermesFleet,
  messagesIn,
  outputsIn,
  type Rollout,
  startHermesFleet,
} from '../setup/hermes-fleet.ts';
import { McpTestServer } from '../setup/mcp-server.ts';
import {
  callTool,
  type Completion,
  hold,
  say,
  type Script,
  silence,
  status,
  turnOf,
  turns,
} from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

const SMALL = { limits: { cpus: 2, memory_mib: 512, pids: 64 } };

let fleet: HermesFleet;
let mcp: McpTestServer;

const docker = (...args: string[]): string => execFileSync('docker', args, { encoding: 'utf8' });

function runnerOf(): string {
  const filters = [`fleet=${fleet.id}`, 'role=runner'].flatMap((label) => ['--filter', `label=hermes-fleet.${label}`]);
  return docker('ps', '-q', '--no-trunc', ...filters).trim();
}

beforeAll(async () => {
  mcp = await McpTestServer.start({ authorization: 'Bearer MARKER-GRANT-77a1' });
  fleet = await startHermesFleet({ env: { FLEET_CREDENTIAL_MARKED: 'MARKER-KEY-77a1' } });
  const spy = {
    sandbox: { env: { PLANTED: 'MARKER-PLANTED' } },
    model: { credential: 'MARKED' },
    tool_accesses: [grantOf(mcp, 'weather')],
  };
  const at = (text: string, more: object = {}) => ({ ...more, files: [{ path: ATTACK, text }] });
  const ports = `${fleet.model.port} ${new URL(mcp.url).port}`;
  await fleet.begin('look', attackScript(`bash ${ATTACK} ${ports}`), { ...spy, sandbox: at(LOOK, spy.sandbox) });
  await fleet.begin('python', attackScript(`python3 ${ATTACK} ${ports}`), {
    ...spy,
    sandbox: at(PYTHON_ATTACKS, spy.sandbox),
  });
  await fleet.begin('forge', attackScript(`sh ${ATTACK}`), {
    sandbox: at(FORGE),
    collect: { files: ['result.json', 'pipe', 'link', 'huge'], max_bytes: 4096 },
  });
  const timeouts = { tool_s: 2 };
  for (const [name, script] of Object.entries({ ...SMASHES, ...KILLS, ...CLEVER_KILLS }))
    await fleet.begin(name, attackScript(smashing(script)), { timeouts, sandbox: SMALL });
  for (const [name, script] of Object.entries({ ...SLOW_SMASHES, 'forged end': FORGED_END }))
    await fleet.begin(name, attackScript(smashing(script), false), { timeouts, sandbox: SMALL });
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
  await mcp.close();
});

verifies(
  ['result:integrity', 'model:no-reach-needed'],
  'a command as root finds no runner, no code, no socket, no network and no secret but the one that was planted for it',
  async () => {
    const rollout = await fleet.settle('look');
    expectTrue(fleet, rollout, 'look');
    const said = (JSON.parse(outputsIn(rollout.items)[1] ?? '{}') as { output: string }).output.split('\n');
    expect(said.filter((line) => line.startsWith('WIN'))).toEqual([]);
    expect(new Set(said.filter((line) => line.startsWith('SECRET')))).toEqual(new Set(['SECRET MARKER-PLANTED']));
    expect(said.at(-1)).toMatch(/^looked at \d+ processes as 0$/);
    // The same eyes, where there is something to be seen.
    const beside = execFileSync('docker', ['exec', '-i', runnerOf(), 'sh', '-c', `exec 2>/dev/null; ${LOOK}`], {
      encoding: 'utf8',
    });
    expect(beside).toMatch(/WIN sees .*host\.py/);
    expect(beside).toContain('WIN has /opt/hermes');
    expect(beside).not.toMatch(/SECRET MARKER-(KEY|GRANT)/);
  },
);

verifies(
  'result:integrity',
  'tracing, stopping, reading memory, raw sockets, devices, mounts and namespaces get a command as root nowhere',
  async () => {
    const rollout = await fleet.settle('python');
    expectTrue(fleet, rollout, 'python');
    const { output } = JSON.parse(outputsIn(rollout.items)[1] ?? '{}') as { output: string };
    const { 'own child': child, 'own socket': socket, ...got } = JSON.parse(output) as Record<string, string>;
    // Of one's own it can be done: the attempts are good ones.
    expect([child, socket]).toEqual(['WIN', 'WIN']);
    expect(Object.keys(got).length).toBeGreaterThan(15);
    expect(Object.entries(got).filter(([, how]) => !how.startsWith('held'))).toEqual([]);
  },
);

verifies(
  ['result:integrity', 'result:collect'],
  'forged results, in files and in whatever is open, are files of the agent and nothing else (S27)',
  async () => {
    const rollout = await fleet.settle('forge');
    expectTrue(fleet, rollout, 'forge');
    expect(JSON.stringify(rollout.activation.body?.response.output.at(-1))).not.toContain('FORGED');
    expect(rollout.activation.body).not.toHaveProperty('reward');
    const files = rollout.close.body?.collected?.files ?? [];
    expect(files.map(({ path }) => path)).toEqual(['result.json', 'pipe', 'link', 'huge']);
    const [result, pipe, link, huge] = files;
    expect(result).toMatchObject({ truncated: false, text: expect.stringContaining('FORGED') as unknown });
    for (const file of [pipe, link]) {
      expect(file).toMatchObject({ text: null, base64: null });
      expect(file?.error).toBeTruthy();
    }
    expect(huge).toMatchObject({ truncated: true, size: 40_000_000_001 });
    expect(JSON.stringify(files).length).toBeLessThan(50_000);
  },
);

verifies(
  'result:integrity',
  "commands that break the keeper's files, shells and processes in the sandbox cost time that is bounded, and nothing of the result (S27)",
  async () => {
    for (const name of [...Object.keys(SMASHES), ...Object.keys(SLOW_SMASHES), 'forged end'])
      expectTrue(fleet, await fleet.settle(name), name);
  },
);

verifies(
  'result:integrity',
  'a command that ends every process of the sandbox does not take its result out of the score',
  async () => {
    for (const name of Object.keys(KILLS)) expectTrue(fleet, await fleet.settle(name), name);
  },
);

for (const name of Object.keys(CLEVER_KILLS))
  test(`nor does one that knows by what the sandbox lives: ${name}`, async () => {
    expectTrue(fleet, await fleet.settle(name), name);
  });

// The epoch in the sandbox is a file that the agent can write.
test('a command that forges the epoch of its keeper does not lose the record when a worker is lost', async () => {
  await using other = await startHermesFleet({ env: QUICK });
  const { 'epoch of the future': forge = '' } = SMASHES;
  await other.begin('epoch', turns([callTool('terminal', { command: smashing(forge) }), silence()]));
  await expect.poll(() => other.model.openCalls.length, { timeout: 60_000, interval: 20 }).toBe(1);
  other.workers[0]?.process.kill('SIGKILL');
  await other.addWorker();
  const { verdict, activation } = await other.settle('epoch');
  expect(verdict).toBe('infra/worker_lost');
  expect(activation.body?.counts).toMatchObject({ model_calls: 1, tool_calls: 1 });
});

test('an end that a command forges has a code that is a number', async () => {
  const { items } = await fleet.settle('forged end');
  expect(JSON.parse(outputsIn(items)[0] ?? '{}')).toMatchObject({ exit_code: expect.any(Number) as unknown });
});

verifies(
  'result:integrity',
  'a child of the runner host can neither signal nor read its sibling, nor the home of it',
  async () => {
    const held = hold(say(ANSWER));
    for (const name of ['sibling-1', 'sibling-2']) await fleet.begin(name, held.script);
    const asking = () => new Set(fleet.model.openCalls.map(({ body }) => body?.model));
    await expect.poll(asking, { timeout: 60_000, interval: 20 }).toEqual(new Set(['sibling-1', 'sibling-2']));
    const siblings = siblingsIn(runnerOf());
    expect(siblings.control()).toBe(true);
    expect(siblings.attack()).toEqual([]);
    held.release();
    for (const name of ['sibling-1', 'sibling-2']) expect((await fleet.settle(name)).verdict).toBe('ok');
  },
);

/** Fails once, delegates to two children of which one runs out of turns, compacts nothing, and answers. */
const honest: Script = (request, call) => {
  // As Hermes sends it back: a tool call without a text has an empty one.
  const tokens = (reply: Completion): Completion => ({
    ...reply,
    message: { ...reply.message, content: reply.message['content'] ?? '' },
    withTokens: true,
  });
  if (call === 0) return status(500);
  if (request.tools === undefined) return tokens(say('out of turns'));
  const task = taskOf(request);
  if (task.includes('CHILD-1'))
    return tokens(say('one', { message: { role: 'assistant', content: 'one', reasoning_content: 'hm' } }));
  if (task.includes('CHILD-2')) return tokens(callTool('terminal', { command: 'true' }));
  if (turnOf(request) === 0)
    return tokens(callTool('delegate_task', { tasks: [{ goal: 'CHILD-1' }, { goal: 'CHILD-2' }] }, 'call_d'));
  if (turnOf(request) === 1) return tokens(callTool('terminal', { command: 'echo "\u00e9"' }, 'call_t'));
  return tokens(say(ANSWER));
};

verifies(
  ['result:integrity', 'model:capture'],
  "a try that failed, children and a summary raise no alarm, and every call's token ids and log-probs are the server's",
  async () => {
    const { verdict, activation, items } = await fleet.run('honest', honest, {
      hermes: { toolsets: ['terminal', 'delegation'], delegation: { max_turns: 1 } },
    });
    expect(verdict).toBe('ok');
    expect(activation.body).toMatchObject({ integrity: 'captured', integrity_notes: [], complete: true });
    const record = await journalOf(fleet, 'honest');
    const { calls } = trajectoryOf(record);
    const answered = calls.filter(({ reply }) => reply !== undefined);
    expect(answered).toHaveLength(6);
    expect(new Set(answered.map(({ who }) => `${who.agent} ${who.kind}`))).toEqual(
      new Set(['a0 main', 'a1 main', 'a2 main', 'a2 summary']),
    );
    const said = serverTokens(fleet, 'honest');
    for (const { messages, tokens } of answered) expect(tokens).toMatchObject({ ...said(record, messages) });
    const root = answered.filter(({ who }) => who.agent === 'a0');
    for (const [index, item] of items.flatMap(tokensOf).entries()) expect(root[index]?.tokens).toMatchObject(item);
    // Hermes sends arguments back in ASCII: the third prompt does not begin with what was generated, and the result says so.
    expect(activation.body?.token_continuity).toEqual([true, true, false]);
  },
);

/** Runs the script where the runner lies about what was said last. */
async function lied(name: string, script: Script, maxTurns?: number): Promise<Rollout> {
  const { folder, python } = await runnerPython(LYING_RUNNER);
  try {
    await using local = await startHermesFleet({ provider: 'local', env: { FLEET_LOCAL_PYTHON: python } });
    return await local.run(name, script, maxTurns === undefined ? {} : { hermes: { max_turns: maxTurns } });
  } finally {
    await rm(folder, { recursive: true });
  }
}

verifies(
  'result:integrity',
  'a runner that claims another answer than was captured is a mismatch, and the answer is the captured one',
  async () => {
    const { verdict, activation, items } = await lied('lied', () => say(ANSWER));
    expect(verdict).toBe('ok');
    expect(messagesIn(items)).toEqual([ANSWER]);
    expect(activation.body?.integrity).toBe('mismatch');
    expect(activation.body?.integrity_notes.join()).toContain('FORGED');
  },
);

test('a runner that lies about a run that reached its turn limit is a mismatch', async () => {
  const { verdict, activation } = await lied(
    'lied-limit',
    ({ tools }) => (tools === undefined ? say(ANSWER) : callTool('terminal', { command: 'true' })),
    1,
  );
  expect(verdict).toBe('incomplete/max_turns');
  expect(activation.body?.integrity).toBe('mismatch');
});
