import { execFileSync } from 'node:child_process';
import { afterAll, beforeAll, expect } from 'vitest';
import { type HermesFleet, messagesIn, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { callTool, type Completion, say, type Script, silence, turnOf } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

const USAGE = { prompt_tokens: 100, completion_tokens: 10, total_tokens: 110 };
let fleet: HermesFleet;

const docker = (...args: string[]): string => execFileSync('docker', args, { encoding: 'utf8' }).trim();

/** Containers of this fleet in a role. */
const containers = (role: 'runner' | 'sandbox'): string[] =>
  docker(
    'ps',
    '-q',
    '--no-trunc',
    '--filter',
    `label=hermes-fleet.fleet=${fleet.id}`,
    '--filter',
    `label=hermes-fleet.role=${role}`,
  )
    .split('\n')
    .filter((id) => id !== '');

/** Four commands, and then nothing until the client goes away. */
const hangs: Script = (request) => {
  const turn = turnOf(request);
  const worked: Completion = { ...callTool('terminal', { command: `echo worked-${turn}` }), usage: USAGE };
  return turn < 4 ? worked : silence();
};

const hanging = async (name: string): Promise<void> =>
  await expect
    .poll(() => fleet.model.openCalls.some(({ body }) => body?.model === name), { timeout: 60_000, interval: 20 })
    .toBe(true);

const workedIn = (items: Parameters<typeof outputsIn>[0]): (string | undefined)[] =>
  outputsIn(items).map((output) => /worked-\d/.exec(output)?.[0]);

const FOUR = ['worked-0', 'worked-1', 'worked-2', 'worked-3'];

beforeAll(async () => {
  fleet = await startHermesFleet();
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

verifies(
  ['result:class', 'model:capture'],
  'a runner that is killed in the middle ends its activations as lost, with all that was done, and the next one gets a new runner',
  async () => {
    const names = ['killed-1', 'killed-2'];
    for (const name of names) await fleet.begin(name, hangs);
    await Promise.all(names.map(hanging));
    const begun = performance.now();
    for (const id of containers('runner')) docker('kill', '--signal', 'KILL', id);
    const ended = await Promise.all(names.map(async (name) => await fleet.client.wait(name, 'a')));
    expect(performance.now() - begun).toBeLessThan(10_000);
    expect(ended.map(({ class: resultClass }) => resultClass)).toEqual(['infra', 'infra']);
    for (const name of names) {
      const { verdict, activation, items, close } = await fleet.settle(name);
      expect(verdict).toMatch(/^infra\/runner_(lost|oom)$/);
      expect(activation).toMatchObject({ fault: 'infrastructure', retryable: true, reward_valid: false });
      expect(workedIn(items)).toEqual(FOUR);
      expect(messagesIn(items)).toEqual([]);
      expect(activation.body).toMatchObject({
        complete: false,
        usage: { complete: false, total: { input_tokens: 400, output_tokens: 40 } },
      });
      expect(close.body?.observations.records.filter(({ kind }) => kind === 'tool_call')).toHaveLength(4);
      expect(fleet.model.callsOf(name)).toHaveLength(5);
    }
    const { verdict } = await fleet.run('after-the-kill', say('fine again'));
    expect(verdict).toBe('ok');
  },
);

verifies(
  'result:class',
  'a sandbox that is removed under a command ends the activation as lost within 10 s, without another model call',
  async () => {
    let removedAt = 0;
    const script: Script = (request) =>
      callTool('terminal', { command: turnOf(request) === 0 ? 'echo worked-0' : 'echo second; sleep 1234.7' });
    await fleet.begin('sandbox-gone', script);
    await expect.poll(() => fleet.model.callsOf('sandbox-gone').length, { timeout: 60_000, interval: 20 }).toBe(2);
    const [box] = containers('sandbox');
    await expect
      .poll(() => docker('top', box ?? '', '-o', 'pid,args'), { timeout: 20_000, interval: 50 })
      .toContain('1234.7');
    removedAt = performance.now();
    docker('rm', '-f', box ?? '');
    await fleet.client.wait('sandbox-gone', 'a');
    expect(performance.now() - removedAt).toBeLessThan(10_000);
    const { verdict, items, close } = await fleet.settle('sandbox-gone');
    expect(verdict).toBe('infra/sandbox_lost');
    expect(workedIn(items)[0]).toBe('worked-0');
    expect(fleet.model.callsOf('sandbox-gone')).toHaveLength(2);
    expect(close).toMatchObject({ class: 'ok', body: { session: { class: 'infra', code: 'sandbox_lost' } } });
  },
);

verifies('result:class', 'a sandbox that is gone between two commands ends the activation as lost', async () => {
  await fleet.begin('sandbox-gone-between', (request) => {
    if (turnOf(request) === 1) for (const id of containers('sandbox')) docker('rm', '-f', id);
    return callTool('terminal', { command: `echo worked-${turnOf(request)}` });
  });
  const { verdict, items } = await fleet.settle('sandbox-gone-between');
  expect(verdict).toBe('infra/sandbox_lost');
  expect(workedIn(items)[0]).toBe('worked-0');
  expect(fleet.model.callsOf('sandbox-gone-between')).toHaveLength(2);
});

verifies(
  ['cancel:signal', 'model:capture'],
  'a cancel keeps the usage and the items so far, and says that a call is unknown',
  async () => {
    await fleet.begin('cancelled', hangs);
    await hanging('cancelled');
    const begun = performance.now();
    expect(await fleet.client.cancel({ sessionId: 'cancelled', commandId: 'a' })).toEqual({ accepted: true });
    await fleet.client.wait('cancelled', 'a');
    expect(performance.now() - begun).toBeLessThan(3_000);
    const { verdict, activation, items } = await fleet.settle('cancelled');
    expect(verdict).toBe('cancelled/by_caller');
    expect(workedIn(items)).toEqual(FOUR);
    expect(activation.body?.usage).toMatchObject({
      complete: false,
      total: { input_tokens: 400, output_tokens: 40, total_tokens: 440 },
    });
    await expect.poll(() => fleet.model.openCalls.length).toBe(0);
  },
);

verifies(
  ['cancel:signal', 'close:stops-first'],
  'a close in the middle of a command leaves no process, no request and no container',
  async () => {
    await fleet.begin('closed', (request) =>
      callTool('terminal', {
        command: turnOf(request) === 0 ? 'echo worked-0' : "sh -c 'setsid sleep 1234.8 & sleep 1234.8'",
      }),
    );
    await expect.poll(() => fleet.model.callsOf('closed').length, { timeout: 60_000, interval: 20 }).toBe(2);
    await fleet.client.close({ session_id: 'closed' });
    expect(containers('sandbox')).toEqual([]);
    const { activation, items } = await fleet.settle('closed');
    expect(activation).toMatchObject({ class: 'cancelled', code: 'by_close' });
    expect(workedIn(items)[0]).toBe('worked-0');
    expect(fleet.model.callsOf('closed')).toHaveLength(2);
  },
);
