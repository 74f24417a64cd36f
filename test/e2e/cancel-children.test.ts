import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect } from 'vitest';
import { answeredOf, busyRoot, FAMILY_SEED, slowFamily } from '../setup/client-scripts-cancel.ts';
import { type HermesFleet, messagesIn, type Rollout, startHermesFleet } from '../setup/hermes-fleet.ts';
import { processesIn } from '../setup/leaks.ts';
import { verifies } from '../setup/verifies.ts';

const PROMPT_MS = 1000;
let fleet: HermesFleet;

beforeAll(async () => {
  fleet = await startHermesFleet({ provider: 'local' });
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

/** Processes by their parent, as the kernel has them. */
function childrenOf(parent: number): number[] {
  return readdirSync('/proc').flatMap((name) => {
    try {
      if (!/^\d+$/.test(name)) return [];
      const [state, ppid] = readFileSync(`/proc/${name}/stat`, 'latin1')
        .replace(/^.*\) /s, '')
        .split(' ');
      return state !== 'Z' && Number(ppid) === parent ? [Number(name)] : [];
    } catch {
      return []; // Gone meanwhile.
    }
  });
}

/** Activations that the runner host has a process for. */
function runnerChildren(): number[] {
  const isHost = (pid: number): boolean => readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes('runner/host.py');
  return childrenOf(fleet.workers[0]?.process.pid ?? -1)
    .filter(isHost)
    .flatMap(childrenOf);
}

/** The family at work: one child is in its command, the others have been answered and ask again. */
async function atWork(name: string): Promise<void> {
  await fleet.begin(name, slowFamily, FAMILY_SEED);
  const isAtWork = async (): Promise<boolean> =>
    (await processesIn(fleet.root)).some((each) => each.includes('tick')) &&
    answeredOf(fleet.model.callsOf(name)) >= 6 &&
    fleet.model.openCalls.length === 2;
  await expect.poll(isAtWork, { timeout: 60_000, interval: 10 }).toBe(true);
}

/** Nothing of it is alive, and nothing of it asks any more, from a second after `since` on. */
async function expectNothingAlive(name: string, since: number): Promise<void> {
  await expect
    .poll(async () => [...(await processesIn(fleet.root)), ...runnerChildren()], { interval: 10, timeout: 10_000 })
    .toEqual([]);
  const gone = Date.now() - since;
  await sleep(Math.max(0, since + 2 * PROMPT_MS - Date.now()));
  const calls = fleet.model.callsOf(name);
  expect(calls.filter(({ receivedAt }) => receivedAt > since + PROMPT_MS)).toEqual([]);
  expect(fleet.model.openCalls).toEqual([]);
  const aborted = calls.flatMap(({ abortedAt }) => abortedAt ?? []);
  console.log(
    `${name}: all gone after ${gone} ms, requests closed after ${aborted.map((at) => at - since).join(', ')} ms`,
  );
  expect(gone).toBeLessThan(2 * PROMPT_MS);
  for (const at of aborted) expect(at - since).toBeLessThan(PROMPT_MS);
}

/** Usage is that of the calls that were answered; it and the record say whether that is all. */
function expectSeen({ activation, items }: Rollout, name: string, isAll: boolean): void {
  const answered = answeredOf(fleet.model.callsOf(name));
  const { usage, counts } = activation.body ?? {};
  expect(counts?.model_calls).toBe(answered);
  expect(usage?.total).toMatchObject({ input_tokens: 100 * answered, output_tokens: 10 * answered });
  expect([usage?.complete, activation.body?.complete]).toEqual([isAll, isAll]);
  expect(messagesIn(items)).toEqual([]);
}

verifies(
  ['cancel:signal', 'result:class'],
  'a cancel while three children are at work ends their requests, commands and runner, and keeps the usage so far (Q09, A24)',
  async () => {
    await atWork('family');
    const held = fleet.model.openCalls.filter(({ body }) => body?.model === 'family');
    expect(await fleet.client.cancel({ sessionId: 'family', commandId: 'a' })).toMatchObject({ accepted: true });
    const since = Date.now();
    await fleet.client.wait('family', 'a');
    expect(Date.now() - since).toBeLessThan(2 * PROMPT_MS);
    await expectNothingAlive('family', since);
    expect(held.map(({ abortedAt }) => typeof abortedAt)).toEqual(['number', 'number']);
    const rollout = await fleet.settle('family');
    expect(rollout.verdict).toBe('cancelled/by_caller');
    expectSeen(rollout, 'family', false);
    expect(rollout.activation.body?.counts.agents).toBe(4);
    expect(rollout.activation.body?.usage.root).toMatchObject({ input_tokens: 100, output_tokens: 10 });
    expect(rollout.activation.body?.usage.others.input_tokens).toBeGreaterThanOrEqual(500);
  },
);

verifies(
  ['close:stops-first', 'cancel:signal'],
  'a close while three children are at work does so too, before it answers (Q09)',
  async () => {
    await atWork('closed');
    const since = Date.now();
    await fleet.client.close({ session_id: 'closed' });
    expect(await processesIn(fleet.root)).toEqual([]);
    await expectNothingAlive('closed', since);
    const rollout = await fleet.settle('closed');
    expect(rollout.verdict).toBe('cancelled/by_close');
    expectSeen(rollout, 'closed', false);
  },
);

verifies(
  ['cancel:signal', 'result:budget'],
  'a time limit ends a command that ignores it, its grandchild in another session and a runner that hears no signal; with no call open the usage is whole (S01, A24)',
  async () => {
    await fleet.begin('stopped', busyRoot, { ...FAMILY_SEED, timeouts: { activation_s: 5 } });
    await expect
      .poll(async () => (await processesIn(fleet.root)).some((each) => each.includes('tick')), { timeout: 60_000 })
      .toBe(true);
    const [runner, ...more] = runnerChildren();
    if (runner === undefined) throw new Error('the runner host has no child');
    expect(more).toEqual([]);
    process.kill(runner, 'SIGSTOP');
    await fleet.client.wait('stopped', 'a');
    const since = Date.now();
    await expectNothingAlive('stopped', since);
    const rollout = await fleet.settle('stopped');
    expect(rollout.verdict).toBe('incomplete/wall_time');
    expect(rollout.activation.body?.timings_ms['total']).toBeLessThan(8000);
    expectSeen(rollout, 'stopped', true);
  },
);
