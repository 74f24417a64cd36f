import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { ObservationBundle, type ObservationRecord } from '@hermes-fleet/shared';
import { afterAll, beforeAll, expect } from 'vitest';
import {
  callsIn,
  type HermesFleet,
  outputsIn,
  type Rollout,
  type SeedMore,
  startHermesFleet,
} from '../setup/hermes-fleet.ts';
import { schemaFault } from '../setup/json-schema.ts';
import { QUICK } from '../setup/fleet.ts';
import { callTool, hold, type Reply, say, type Script, silence, turnOf } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

const gym = JSON.parse(
  readFileSync(path.join(import.meta.dirname, '../data/gym-observation-schema.json'), 'utf8'),
) as object;
const FOUR = ['worked-0', 'worked-1', 'worked-2', 'worked-3'];
/** The first child of a runner host; an activation that is alone there. */
const FIRST_UID = '20000';

let fleet: HermesFleet;

beforeAll(async () => {
  fleet = await startHermesFleet();
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

const docker = (...args: string[]): string => execFileSync('docker', args, { encoding: 'utf8' }).trim();

function boxOf(role: 'runner' | 'sandbox'): string {
  const labels = [`fleet=${fleet.id}`, `role=${role}`].flatMap((label) => ['--filter', `label=hermes-fleet.${label}`]);
  const [id = '', ...others] = docker('ps', '-q', ...labels).split('\n');
  if (id === '' || others.length > 0) throw new Error(`not one ${role}: ${id} ${others.join(' ')}`);
  return id;
}

/** Four commands that end well, and then `fifth` for ever. */
const fourThen =
  (fifth: Reply): Script =>
  (request) => {
    const turn = turnOf(request);
    return turn < 4 ? callTool('terminal', { command: `echo worked-${turn}` }, `c${turn}`) : fifth;
  };
const fifthCommand = (command: string): Script => fourThen(callTool('terminal', { command }, 'c4'));

/** The rollout of a session to which `end` happens once its fifth model call, or its fifth command, hangs. */
async function ended(
  name: string,
  script: Script,
  end: (name: string) => unknown = () => undefined,
  more: SeedMore = {},
  at: HermesFleet = fleet,
): Promise<Rollout> {
  await at.begin(name, script, more);
  await expect.poll(() => at.model.callsOf(name).length, { timeout: 60_000, interval: 20 }).toBeGreaterThanOrEqual(5);
  await end(name);
  return await at.settle(name);
}

const recordsOf = <Kind extends ObservationRecord['kind']>({ close }: Rollout, kind: Kind) =>
  (close.body?.observations.records ?? []).flatMap((record) =>
    record.kind === kind ? [record as Extract<ObservationRecord, { kind: Kind }>] : [],
  );

/** Whatever the end was: the bundle is one that Gym takes, and with the response it has all that had happened before. */
function expectFourCalls(
  rollout: Rollout,
  end: { readonly verdict: string; readonly answered?: number; readonly fifth?: string },
): void {
  const { verdict, activation, close, items } = rollout;
  const { answered = 4, fifth } = end;
  expect(verdict).toBe(end.verdict);
  const bundle = close.body?.observations;
  expect(schemaFault(gym, bundle)).toBeUndefined();
  expect(ObservationBundle.parse(bundle)).toEqual(bundle);
  const [root, ...others] = recordsOf(rollout, 'agent_invocation');
  expect(others).toEqual([]);
  expect(root).toMatchObject({ invocation_id: 'a:a0', parent_invocation_id: null });
  expect(new Set(root?.model_calls?.map(({ response_id: id }) => id)).size).toBe(answered);
  const tools = recordsOf(rollout, 'tool_call');
  expect(tools.map(({ tool_call_id: id, status }) => `${id} ${status}`)).toEqual([
    ...['c0', 'c1', 'c2', 'c3'].map((id) => `${id} completed`),
    ...(fifth === undefined ? [] : [`c4 ${fifth}`]),
  ]);
  for (const tool of tools) {
    expect(tool).toMatchObject({ invocation_id: 'a:a0', tool_name: 'terminal', timing_source: 'harness' });
    expect(tool.completed_at ?? 0).toBeGreaterThanOrEqual(tool.started_at ?? Infinity);
  }
  expect(callsIn(items).map(({ call_id: id }) => id)).toEqual(tools.map(({ tool_call_id: id }) => id));
  expect(
    outputsIn(items)
      .map((output) => /worked-\d/.exec(output)?.[0])
      .slice(0, 4),
  ).toEqual(FOUR);
  expect(activation.body?.usage.total.input_tokens).toBe(answered * 10);
  expect(close).toMatchObject({ class: 'ok', body: { session: { class: activation.class, code: activation.code } } });
}

const sandboxOf = (rollout: Rollout): string[] =>
  recordsOf(rollout, 'sandbox').map(({ provider, role, outcome }) => `${provider} ${role} ${outcome}`);

const small: SeedMore = { sandbox: { limits: { memory_mib: 48 } } };

verifies('close:observations', 'an exception in the agent keeps what was before it (A23)', async () => {
  // Hermes joins the parts of a content, and fails over one that is no text.
  const message = { role: 'assistant', content: [{ type: 'text', text: 5 }] };
  const broken: Reply = { kind: 'completion', finishReason: 'stop', message };
  const rollout = await ended('exception', fourThen(broken), undefined, { hermes: { max_turns: 6 } });
  expectFourCalls(rollout, { verdict: 'infra/hermes_crashed', answered: 5 });
  expect(rollout.activation.body?.message).toContain('sequence item 0');
  expect(recordsOf(rollout, 'agent_invocation')[0]?.status).toBe('failed');
});

verifies('close:observations', 'a runner that is killed in the middle of a call keeps what was before it', async () => {
  const rollout = await ended('killed', fourThen(silence()), () =>
    docker('exec', '--user', FIRST_UID, boxOf('runner'), 'sh', '-c', 'kill -KILL -1'),
  );
  expectFourCalls(rollout, { verdict: 'infra/runner_lost' });
  expect(rollout.activation.body).toMatchObject({ complete: false, usage: { complete: false } });
  expect(rollout.close.body?.observations.gaps).toMatchObject([
    { code: 'model_calls_unavailable', invocation_id: 'a:a0' },
  ]);
});

verifies('close:observations', 'a runner that runs out of memory keeps what was before it', async () => {
  // Outside of the BMP each character of a Python text takes four bytes.
  const held = hold(say(`\u{1F600}${'x'.repeat(20 << 20)}`));
  const four = fourThen(silence());
  const script: Script = (request, call) => (turnOf(request) < 4 ? four(request, call) : held.script(request, call));
  let runner = '';
  const limit = (mib: number): string => docker('update', '--memory', `${mib}m`, '--memory-swap', `${mib}m`, runner);
  try {
    const rollout = await ended('runner-oom', script, () => {
      runner = boxOf('runner');
      // Enough for the host to pass the reply on, and not for its child to read it.
      limit(Math.ceil(Number.parseFloat(docker('stats', '--no-stream', '--format', '{{.MemUsage}}', runner))) + 64);
      held.release();
    });
    expectFourCalls(rollout, { verdict: 'infra/runner_oom', answered: 5 });
  } finally {
    if (runner !== '' && docker('ps', '-q', '--filter', `id=${runner}`) !== '') limit(8192);
  }
});

verifies('close:observations', 'a time limit keeps what was before it', async () => {
  const [wall, expired] = await Promise.all([
    ended('wall', fourThen(silence()), undefined, { timeouts: { activation_s: 8 } }),
    ended('expired', fourThen(silence()), undefined, { timeouts: { session_ttl_s: 12 } }),
  ]);
  expectFourCalls(wall, { verdict: 'incomplete/wall_time' });
  expect(sandboxOf(wall)).toEqual(['docker agent completed']);
  expectFourCalls(expired, { verdict: 'cancelled/expired' });
});

verifies('close:observations', 'a cancel, and a close in the middle, keep what was before them', async () => {
  const cancelled = await ended('cancelled', fourThen(silence()), async (sessionId) => {
    await fleet.client.cancel({ sessionId, commandId: 'a' });
  });
  expectFourCalls(cancelled, { verdict: 'cancelled/by_caller' });
  const closed = await ended('closed', fourThen(silence()), async (sessionId) => {
    await fleet.client.close({ session_id: sessionId });
  });
  expectFourCalls(closed, { verdict: 'cancelled/by_close' });
  for (const rollout of [cancelled, closed]) {
    expect(sandboxOf(rollout)).toEqual(['docker agent cancelled']);
    // The last output is in no answered call: the model was shown it, and said nothing any more.
    const [root] = recordsOf(rollout, 'agent_invocation');
    expect(root?.conversation?.at(-1)).toMatchObject({
      type: 'function_call_output',
      call_id: 'c3',
      output: expect.stringContaining('worked-3') as string,
    });
  }
});

verifies('close:observations', 'a tool that runs out of memory is told to the model, which goes on', async () => {
  const script = fifthCommand('python3 -c "b\'x\' * (200 << 20)"');
  const goesOn: Script = (request, call) => (turnOf(request) < 5 ? script(request, call) : say('went on'));
  const rollout = await fleet.run('tool-oom', goesOn, small);
  expectFourCalls(rollout, { verdict: 'ok', answered: 6, fifth: 'completed' });
  expect(outputsIn(rollout.items)[4]).toMatch(/Killed.*"exit_code": 137/);
  expect(sandboxOf(rollout)).toEqual(['docker agent oom']);
});

verifies('close:observations', 'a sandbox that dies or is removed keeps what was before it', async () => {
  const removed = await ended('removed', fifthCommand('sleep 1234.9'), async () => {
    const box = boxOf('sandbox');
    await expect.poll(() => docker('top', box), { timeout: 20_000, interval: 50 }).toContain('1234.9');
    docker('rm', '-f', box);
  });
  expectFourCalls(removed, { verdict: 'infra/sandbox_lost', answered: 5, fifth: 'failed' });
  expect(sandboxOf(removed)).toEqual(['docker agent sandbox_error']);
  // Memory that no process holds, so that the kernel has to end the first one of the box.
  const fill = 'echo 1000 > /proc/1/oom_score_adj; dd if=/dev/zero of=/dev/shm/x bs=1M';
  const oom = await ended('box-oom', fifthCommand(fill), undefined, small);
  expectFourCalls(oom, { verdict: 'infra/sandbox_oom', answered: 5, fifth: 'failed' });
  expect(sandboxOf(oom)).toEqual(['docker agent oom']);
});

verifies('close:observations', 'a worker that is killed keeps what was before it', async () => {
  await using other = await startHermesFleet({ env: QUICK });
  const end = async (): Promise<void> => {
    await other.addWorker();
    other.workers[0]?.process.kill('SIGKILL');
  };
  expectFourCalls(await ended('worker', fourThen(silence()), end, {}, other), { verdict: 'infra/worker_lost' });
});
