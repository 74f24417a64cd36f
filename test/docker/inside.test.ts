import Docker from 'dockerode';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { docker, OwnersBox } from '../setup/borrowed-box.ts';
import { type HermesFleet, messagesIn, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import {
  BARE_IMAGE,
  BUSYBOX_IMAGE,
  DEBIAN_IMAGE,
  HERMES_IMAGE,
  makeInsideImages,
  MUSL_IMAGE,
} from '../setup/images.ts';
import { callTool, say, type Script, silence, turnOf } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

const PACKAGES = '/usr/local/lib/python3.11/dist-packages';
let fleet: HermesFleet;

beforeAll(async () => {
  await makeInsideImages(new Docker());
  fleet = await startHermesFleet();
}, 120_000);

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

const INSIDE = { placement: 'inside' } as const;

const works: Script = (request) =>
  turnOf(request) === 0
    ? callTool('terminal', { command: 'echo "made in $PWD" >made; cat made' })
    : turnOf(request) === 1
      ? callTool('write_file', { path: 'second.txt', content: 'two\n' })
      : say('done');

/** What runs in the boxes of the fleet, as `pid args`. */
const processes = (): string[] =>
  docker('ps', '-q', '--filter', `label=hermes-fleet.fleet=${fleet.id}`, '--filter', 'label=hermes-fleet.role=sandbox')
    .split('\n')
    .filter(Boolean)
    .flatMap((id) => docker('top', id, '-eo', 'pid,args').split('\n').slice(1));

const hostsIn = (lines: readonly string[]): string[] => lines.filter((line) => line.includes('host.py'));

const IMAGES: readonly (readonly [string, string, 'image' | 'packed'])[] = [
  ['Debian', DEBIAN_IMAGE, 'packed'],
  ['Alpine-like', MUSL_IMAGE, 'packed'],
  ['busybox', BUSYBOX_IMAGE, 'packed'],
  ['no shell', BARE_IMAGE, 'packed'],
  ['its own Hermes', HERMES_IMAGE, 'image'],
];

for (const [what, image, origin] of IMAGES) {
  verifies(
    ['hermes:any-image', 'hermes:reuse-or-install', 'hermes:one-pin'],
    `Hermes runs inside an image with ${what}, without network`,
    async () => {
      const name = `inside-${what.replaceAll(' ', '-')}`;
      const { seed, verdict, activation, items, close } = await fleet.run(name, works, {
        hermes: INSIDE,
        sandbox: { image },
        collect: { files: ['made', 'second.txt'] },
      });
      expect(seed.body).toMatchObject({ message: null, hermes_version: '0.19.0', hermes_origin: origin });
      expect(verdict).toBe('ok');
      expect(activation.body).toMatchObject({ integrity: 'claimed', complete: true, hermes_version: '0.19.0' });
      expect(activation.body?.gaps.map(({ code }) => code)).toContain('no_isolation');
      expect(outputsIn(items)[0]).toContain('made in /workspace');
      expect(messagesIn(items)).toEqual(['done']);
      expect(close.body?.collected?.files.map(({ text }) => text)).toEqual(['made in /workspace\n', 'two\n']);
      expect(close.body?.sandbox).toBe('removed');
    },
  );
}

const PLANTED: readonly (readonly [string, string])[] = [
  ['another version', '0.18.0'],
  ['the pinned version that does not import', '0.19.0'],
];

for (const [what, version] of PLANTED) {
  verifies('hermes:reuse-or-install', `an image with ${what} gets the packed Hermes`, async () => {
    const metadata = `Metadata-Version: 2.1\nName: hermes-agent\nVersion: ${version}\n`;
    const files = [{ path: `${PACKAGES}/hermes_agent-${version}.dist-info/METADATA`, text: metadata }];
    const { seed, verdict } = await fleet.run(`planted-${version}`, works, { hermes: INSIDE, sandbox: { files } });
    expect(seed.body).toMatchObject({ hermes_version: '0.19.0', hermes_origin: 'packed' });
    expect(verdict).toBe('ok');
  });
}

verifies('hermes:reuse-or-install', 'a Hermes that cannot start fails the seed, with the reason', async () => {
  const limits = { cpus: 1, memory_mib: 40, pids: 64 };
  const { seed, close } = await fleet.run('too-small', works, { hermes: INSIDE, sandbox: { limits } });
  expect([seed.class, seed.code]).toEqual(['infra', 'runner_start']);
  expect(seed.body?.message).toMatch(/Hermes 0\.19\.0 does not import in the sandbox \(.*exit 137\)/);
  expect(close.class).toBe('ok');
});

verifies(
  ['hermes:stop', 'cancel:signal'],
  'a cancel and a time limit end Hermes in the sandbox, and keep what was done',
  async () => {
    const hangs: Script = (request) =>
      turnOf(request) === 0 ? callTool('terminal', { command: 'echo first' }) : silence();
    await fleet.begin('inside-cancel', hangs, { hermes: INSIDE });
    await expect.poll(() => fleet.model.callsOf('inside-cancel').length, { timeout: 60_000, interval: 50 }).toBe(2);
    expect(hostsIn(processes())).not.toEqual([]);
    const begun = performance.now();
    await fleet.client.cancel({ sessionId: 'inside-cancel', commandId: 'a' });
    const cancelled = await fleet.client.wait('inside-cancel', 'a');
    expect(performance.now() - begun).toBeLessThan(5000);
    expect([cancelled.class, cancelled.code]).toEqual(['cancelled', 'by_caller']);
    const late = await fleet.run('inside-late', hangs, { hermes: INSIDE, timeouts: { activation_s: 12 } });
    expect(late.verdict).toBe('incomplete/wall_time');
    expect(outputsIn(late.items)[0]).toContain('first');
    await fleet.client.wait('inside-cancel', 'close');
    expect(hostsIn(processes())).toEqual([]);
  },
);

verifies(
  'session:many-activations',
  'several activations run inside one sandbox, each as the last one left it',
  async () => {
    fleet.model.script('inside-many', (request) =>
      turnOf(request) === 0 ? callTool('terminal', { command: 'echo x >>count; wc -l <count' }) : say('done'),
    );
    await using session = await fleet.client.open(fleet.seedOf('inside-many', 'inside-many', { hermes: INSIDE }));
    for (const count of ['1', '2', '3']) {
      const { body } = await session.activate('go');
      expect(outputsIn(body?.response.output ?? [])[0]).toContain(count);
    }
    expect(hostsIn(processes())).toEqual([]);
  },
);

verifies(
  ['seed:borrow', 'hermes:any-image', 'hermes:stop'],
  'Hermes is streamed into a borrowed sandbox once, for two sessions at a time, and nothing of it runs on there',
  async () => {
    using box = new OwnersBox(BUSYBOX_IMAGE);
    const names = ['lent-1', 'lent-2'];
    for (const name of names)
      await fleet.begin(
        name,
        (request) =>
          turnOf(request) === 0
            ? callTool('terminal', { command: 'sleep 4321', background: true })
            : turnOf(request) === 1
              ? callTool('terminal', { command: `echo ${name}` })
              : say('done'),
        { hermes: INSIDE, sandbox: box.access() },
      );
    for (const name of names) {
      const { verdict, items, close } = await fleet.settle(name);
      expect([name, verdict]).toEqual([name, 'ok']);
      expect(outputsIn(items)[1]).toContain(name);
      expect(close).toMatchObject({ class: 'ok', body: { sandbox: 'disconnected' } });
    }
    expect(box.processes()).toEqual([]);
    expect(box.leftovers().filter((path) => !/^\/\.hermes-fleet\/(bin|hermes-[0-9a-f]{12})$/.test(path))).toEqual([]);
    expect(box.isTicking()).toBe(true);
  },
);

verifies(
  ['seed:borrow', 'hermes:reuse-or-install'],
  "a borrowed sandbox's own Hermes is reused, with nothing but the runner's code put there",
  async () => {
    using box = new OwnersBox(HERMES_IMAGE);
    const { seed, verdict } = await fleet.run('lent-own', works, { hermes: INSIDE, sandbox: box.access() });
    expect(seed.body?.hermes_origin).toBe('image');
    expect(verdict).toBe('ok');
    expect(box.leftovers()).toEqual([expect.stringMatching(/^\/\.hermes-fleet\/runner-[0-9a-f]{12}$/)]);
    expect(box.processes()).toEqual([]);
  },
);

test('a runner that is killed inside of the sandbox ends the activation as lost, with what was done', async () => {
  await fleet.begin(
    'inside-killed',
    (request) => (turnOf(request) === 0 ? callTool('terminal', { command: 'echo first' }) : silence()),
    { hermes: INSIDE },
  );
  await expect.poll(() => fleet.model.callsOf('inside-killed').length, { timeout: 60_000, interval: 50 }).toBe(2);
  for (const line of hostsIn(processes())) process.kill(Number(line.trim().split(' ')[0]), 'SIGKILL');
  const { verdict, items } = await fleet.settle('inside-killed');
  expect(verdict).toBe('infra/runner_lost');
  expect(outputsIn(items)[0]).toContain('first');
});
