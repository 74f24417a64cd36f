import { afterAll, beforeAll, expect, test } from 'vitest';
import { docker, OwnersBox } from '../setup/borrowed-box.ts';
import { QUICK } from '../setup/fleet.ts';
import { type HermesFleet, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { callTool, say, type Script, silence, turnOf } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

/** Within which a sandbox that is gone must have ended its activation. */
const SECONDS_MS = 10_000;
let fleet: HermesFleet;

beforeAll(async () => {
  fleet = await startHermesFleet({ env: { FLEET_SANDBOX_WATCH_MS: '500' } });
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

/** Runs commands one after another, then answers with what the last one printed. */
const commands =
  (...list: readonly string[]): Script =>
  (request) => {
    const turn = turnOf(request);
    const command = list[turn];
    return command === undefined ? say('done') : callTool('terminal', { command });
  };

/** The terminal tool's `background`: a process that outlives its command. */
const inBackground = (command: string): ReturnType<typeof callTool> =>
  callTool('terminal', { command, background: true });

const openCallOf = async (name: string): Promise<void> =>
  await expect
    .poll(() => fleet.model.openCalls.some(({ body }) => body?.model === name), { timeout: 60_000, interval: 20 })
    .toBe(true);

verifies(
  ['seed:borrow', 'close:stops-first'],
  'a borrowed sandbox is used, left running with its service and files, and nothing of ours is left in it',
  async () => {
    using box = new OwnersBox();
    const script: Script = (request) =>
      turnOf(request) === 0
        ? callTool('terminal', { command: 'cat marker; echo patched >patch; pwd' })
        : turnOf(request) === 1
          ? inBackground('setsid sleep 4321')
          : say('done');
    const { seed, verdict, items, close } = await fleet.run('borrow', script, { sandbox: box.access() });
    expect(seed.body?.sandbox).toMatchObject({ provider: 'docker', image: null, workdir: '/work' });
    expect(verdict).toBe('ok');
    expect(outputsIn(items)[0]).toContain('mine\\n/work');
    expect(close).toMatchObject({ class: 'ok', body: { sandbox: 'disconnected', session: { class: 'ok' } } });
    expect(box.processes()).toEqual([]);
    expect(box.leftovers()).toEqual([]);
    expect(box.run('cat /work/patch')).toBe('patched');
    expect(box.isTicking()).toBe(true);
  },
);

verifies('seed:borrow', 'two sessions borrow one sandbox at once, each with an environment of its own', async () => {
  using box = new OwnersBox();
  const names = ['two-1', 'two-2'];
  for (const name of names) {
    const script = commands(`export WHO=${name}; cd /tmp`, 'sleep 1; echo "I am $WHO in $PWD"');
    await fleet.begin(name, script, { sandbox: box.access() });
  }
  for (const name of names) {
    const { verdict, items, close } = await fleet.settle(name);
    expect(verdict).toBe('ok');
    expect(outputsIn(items)[1]).toContain(`I am ${name} in /tmp`);
    expect(close.body?.sandbox).toBe('disconnected');
  }
  expect(box.leftovers()).toEqual([]);
  expect(box.isTicking()).toBe(true);
});

test('the engine that a descriptor names is the one whose workers take the seed', async () => {
  using box = new OwnersBox();
  const engine = docker('info', '--format', '{{.ID}}').replaceAll(/[^A-Za-z0-9._-]/g, '_');
  const { verdict } = await fleet.run('by-engine', commands('true'), { sandbox: box.access({ engine }) });
  expect(verdict).toBe('ok');
});

test('what a borrowed sandbox lacks fails the seed, in a sentence that names it', async () => {
  using box = new OwnersBox();
  const access = box.access();
  const wrong: readonly (readonly [string, object, RegExp])[] = [
    [
      'no-such',
      { ...access.access, connection: { kind: 'direct', provider: 'docker', descriptor: { sandbox_id: 'nobody' } } },
      /finding container nobody failed/,
    ],
    ['no-name', { ...access.access, connection: { kind: 'direct', provider: 'docker', descriptor: {} } }, /sandbox_id/],
    ['no-workdir', { ...access.access, workdir: '/nowhere' }, /has no folder \/nowhere \(workdir\)/],
  ];
  for (const [name, given, sentence] of wrong) {
    const { seed, close } = await fleet.run(name, say('x'), { sandbox: { access: given } as never });
    expect([name, seed.class, seed.code]).toEqual([name, 'infra', 'sandbox_lost']);
    expect(seed.body?.message).toMatch(sentence);
    expect(close.class).toBe('ok');
  }
  docker('stop', '-t', '0', box.name);
  const { seed } = await fleet.run('is-stopped', say('x'), { sandbox: access });
  expect(seed.body?.message).toMatch(/is stopped/);
  docker('start', box.name);
});

test('a cancel and a time limit end all of ours in a borrowed sandbox, a TERM-ignorer with a grandchild too (S01, S07)', async () => {
  using box = new OwnersBox();
  box.run(
    `cat >/work/stubborn.sh <<'END'
trap '' TERM
setsid sh -c 'trap "" TERM; while :; do echo x >>/work/grow; sleep 0.3; done' &
while :; do sleep 1; done
END`,
  );
  const stubborn = 'sh stubborn.sh';
  await fleet.begin('cancelled', commands(stubborn), { sandbox: box.access() });
  await expect.poll(() => box.run('ls /work'), { timeout: 60_000 }).toContain('grow');
  await fleet.client.cancel({ sessionId: 'cancelled', commandId: 'a' });
  const cancelled = await fleet.settle('cancelled');
  expect(cancelled.verdict).toBe('cancelled/by_caller');
  expect(box.processes()).toEqual([]);
  const late = await fleet.run('late', commands(stubborn), { sandbox: box.access(), timeouts: { activation_s: 3 } });
  expect(late.verdict).toBe('incomplete/wall_time');
  expect(box.processes()).toEqual([]);
  expect(box.isTicking()).toBe(true);
});

const BEHIND_OUR_BACK: readonly (readonly [string, (box: OwnersBox) => void])[] = [
  ['removed', (box) => docker('rm', '-f', box.name)],
  ['restarted', (box) => docker('restart', '-t', '0', box.name)],
  ['killed', (box) => docker('kill', box.name)],
];

for (const [what, act] of BEHIND_OUR_BACK) {
  verifies(
    'result:class',
    `a borrowed sandbox that is ${what} ends its activation as lost, with no further model call (S08)`,
    async () => {
      const box = new OwnersBox();
      try {
        // In a command; then, in another session, while the model thinks.
        await fleet.begin(`${what}-tool`, commands('echo first', 'sleep 60', 'echo never'), { sandbox: box.access() });
        await expect
          .poll(() => box.processes().some((line) => line.includes('sleep 60')), { timeout: 60_000 })
          .toBe(true);
        await fleet.begin(
          `${what}-model`,
          (request) => (turnOf(request) === 0 ? callTool('terminal', { command: 'echo first' }) : silence()),
          { sandbox: box.access() },
        );
        await openCallOf(`${what}-model`);
        await expect
          .poll(
            () =>
              fleet.model.openCalls.filter(({ body }) => body?.model === `${what}-model` && body.messages.length > 2)
                .length,
            { timeout: 60_000, interval: 50 },
          )
          .toBe(1);
        const calls = fleet.model.calls.length;
        act(box);
        const begun = performance.now();
        for (const name of [`${what}-tool`, `${what}-model`]) {
          const { verdict, items, activation, close } = await fleet.settle(name);
          expect([name, verdict]).toEqual([name, 'infra/sandbox_lost']);
          expect(outputsIn(items)[0]).toContain('first');
          expect(activation).toMatchObject({ retryable: true, reward_valid: false });
          expect(close).toMatchObject({ class: 'ok', body: { sandbox: 'none' } });
        }
        expect(performance.now() - begun).toBeLessThan(SECONDS_MS);
        expect(fleet.model.calls.length).toBe(calls);
      } finally {
        docker('rm', '-f', '-v', box.name);
      }
    },
  );
}

test('a sandbox that was restarted between two activations is not taken for the one that was borrowed', async () => {
  using box = new OwnersBox();
  fleet.model.script('between', commands('echo one'));
  const session = await fleet.client.open(fleet.seedOf('between', 'between', { sandbox: box.access() }));
  expect((await session.activate('one')).class).toBe('ok');
  docker('restart', '-t', '0', box.name);
  const second = await session.activate('two');
  expect([second.class, second.code]).toEqual(['infra', 'sandbox_lost']);
  expect((await session.close()).body?.sandbox).toBe('none');
});

test('a paused sandbox ends its activation as lost once a command is due in it', async () => {
  using box = new OwnersBox();
  let release = (): void => undefined;
  const held = new Promise<void>((resolve) => (release = resolve));
  await fleet.begin(
    'paused',
    async (request) => {
      if (turnOf(request) === 0) return callTool('terminal', { command: 'echo first' });
      await held;
      return callTool('terminal', { command: 'echo second' });
    },
    { sandbox: box.access() },
  );
  await expect
    .poll(() => fleet.model.openCalls.some(({ body }) => body?.model === 'paused' && body.messages.length > 2), {
      timeout: 60_000,
      interval: 50,
    })
    .toBe(true);
  docker('pause', box.name);
  release();
  const ended = await fleet.client.wait('paused', 'a');
  expect([ended.class, ended.code]).toEqual(['infra', 'sandbox_lost']);
  docker('unpause', box.name);
  expect((await fleet.client.wait('paused', 'close')).class).toBe('ok');
});

for (const placement of ['apart', 'inside'] as const)
  verifies(
    ['seed:borrow', 'job:begun-again'],
    `a worker that is killed leaves a borrowed sandbox running, and another one ends and closes the session, Hermes ${placement} (S07)`,
    async () => {
      using box = new OwnersBox();
      await using other = await startHermesFleet({ env: QUICK });
      const name = `killed-${placement}`;
      const script: Script = (request) =>
        turnOf(request) === 0 ? callTool('terminal', { command: 'echo first >first; sleep 1234.7' }) : say('done');
      await other.begin(name, script, { sandbox: box.access(), hermes: { placement } });
      await expect
        .poll(() => box.processes().some((line) => line === 'sleep 1234.7'), { timeout: 60_000, interval: 50 })
        .toBe(true);
      await other.addWorker();
      other.workers[0]?.process.kill('SIGKILL');
      const { verdict, close } = await other.settle(name);
      expect(verdict).toBe('infra/worker_lost');
      expect(close).toMatchObject({ class: 'ok', body: { sandbox: 'disconnected' } });
      expect(box.processes()).toEqual([]);
      expect(box.run('cat /work/first')).toBe('first');
      expect(box.isTicking()).toBe(true);
    },
  );
