import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { localProvider } from '@hermes-fleet/worker/sandbox/local';
import type { SandboxProvider } from '@hermes-fleet/worker/sandbox/provider';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  Bench,
  closeClean,
  codeOf,
  countAlive,
  deadline,
  newSleep,
  type ProviderFixture,
  run,
  text,
} from '../conformance/bench.ts';
import { describeProvider, withoutStreams } from '../conformance/provider.ts';
import { stubProvider } from '../setup/stub-provider.ts';

const newFleet = (): string => `t${randomBytes(4).toString('hex')}`;

async function fixture(make: (fleetId: string, root: string) => SandboxProvider): Promise<ProviderFixture> {
  const root = await mkdtemp(path.join(tmpdir(), 'fleet-local-'));
  const fleet = newFleet();
  return {
    provider: make(fleet, root),
    peer: make(fleet, root),
    foreign: make(newFleet(), root),
    spec: {},
    impossible: { limits: { cpus: 1, memoryMib: 64, pids: 10 } },
    otherUser: undefined,
    hasOwnProcesses: false,
    leftovers: async () => await readdir(root),
    close: async () => await rm(root, { recursive: true, force: true }),
  };
}

const local = (fleetId: string, root: string): SandboxProvider =>
  localProvider({ fleetId, root, python: '', hostScript: '', warn: () => undefined });

describeProvider('local', async () => await fixture(local));
describeProvider('stub', async () => await fixture((fleetId, root) => stubProvider({ fleetId, root })));
describeProvider('local without streams', async () => await fixture((...at) => withoutStreams(local(...at))), {
  hasStreams: false,
});

describe('local boxes', () => {
  let bench: Bench;
  beforeEach(async () => {
    bench = new Bench(await fixture(local));
  });
  afterEach(async () => {
    await closeClean(bench.fixture);
  });
  const io = { signal: deadline(600_000), deadlineMs: 30_000 };

  test("nothing of the worker's environment is in a command", async () => {
    vi.stubEnv('FLEET_REDIS_URL', 'redis://:secret@host');
    vi.stubEnv('FLEET_CREDENTIAL_MODEL', 'secret');
    vi.stubEnv('OPENAI_API_KEY', 'secret');
    await using box = await bench.box();
    expect(await text(box, 'env')).not.toMatch(/secret|FLEET_|VITEST|NODE_/);
  });

  test('a file is not written through a link that leads out of the box', async () => {
    await using box = await bench.box();
    const outside = await mkdtemp(path.join(tmpdir(), 'fleet-outside-'));
    await writeFile(path.join(outside, 'kept'), 'kept');
    await text(
      box,
      `ln -s ${outside} folder; ln -s ${outside}/kept file; ln -s ${outside}/new dangling; ln -s ${outside}/no/such deep`,
    );
    for (const target of ['folder/new', 'folder/kept', 'file', 'dangling', 'deep/new', '../../../x', `${outside}/new`])
      expect({
        target,
        code: await codeOf(box.putFiles([{ path: target, content: Buffer.from('evil') }], io)),
      }).toEqual({ target, code: 'infra/sandbox_create' });
    expect(await readdir(outside)).toEqual(['kept']);
    expect(await readFile(path.join(outside, 'kept'), 'utf8')).toBe('kept');
    await rm(outside, { recursive: true });
  });

  test('a file is not read through a link that leads out of the box', async () => {
    await using box = await bench.box();
    await text(box, 'ln -s /etc folder; ln -s /etc/passwd file');
    const paths = [
      'folder/passwd',
      'file',
      '/etc/passwd',
      '../../../../../etc/passwd',
      '../box.json/../../../../etc/passwd',
    ];
    for (const file of await box.getFiles(paths, { ...io, maxBytes: 1000 }))
      expect(file).toMatchObject({ content: undefined, size: 0 });
  });

  test('a box that is removed does not follow its links out', async () => {
    const outside = await mkdtemp(path.join(tmpdir(), 'fleet-outside-'));
    await writeFile(path.join(outside, 'kept'), 'kept');
    const box = await bench.box();
    await text(box, `ln -s ${outside} folder`);
    await box.remove();
    expect(existsSync(path.join(outside, 'kept'))).toBe(true);
    await rm(outside, { recursive: true });
  });

  test('a box is not removed by the name of another that begins with it', async () => {
    const spec = bench.spec();
    const [short, long] = await Promise.all(
      [spec.name, `${spec.name}0`].map(
        async (name) => await bench.fixture.provider.create({ ...spec, name }, { signal: deadline() }),
      ),
    );
    const sleep = newSleep();
    if (short === undefined || long === undefined) throw new Error('there are two');
    await run(long, `setsid ${sleep} >/dev/null 2>&1 </dev/null &`);
    await expect.poll(async () => await countAlive(long, sleep)).toBe(1);
    await short.remove();
    expect(await countAlive(long, sleep)).toBe(1);
    await long.remove();
  });

  test.each(['..', '.', '../x', 'a/b', ''])('a box cannot be named %j', async (name) => {
    expect(await codeOf(bench.fixture.provider.create(bench.spec({ name }), { signal: deadline() }))).toBe(
      'infra/sandbox_create',
    );
    expect(await codeOf(bench.fixture.provider.connect({ name }, { signal: deadline() }))).toBe('infra/sandbox_lost');
  });

  test.each([
    ['cpus', { cpus: 1, memoryMib: 4096, pids: 512 }],
    ['memoryMib', { cpus: 2, memoryMib: 64, pids: 512 }],
    ['pids', { cpus: 2, memoryMib: 4096, pids: 9 }],
  ])('a limit of %s that cannot be kept is refused', async (_, limits) => {
    expect(await codeOf(bench.fixture.provider.create(bench.spec({ limits }), { signal: deadline() }))).toBe(
      'infra/sandbox_limit',
    );
  });
});
