import { execFile } from 'node:child_process';
import path from 'node:path';
import { promisify } from 'node:util';
import Docker from 'dockerode';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type HermesFleet, type SeedMore, startHermesFleet } from '../setup/hermes-fleet.ts';
import { HERMES_IMAGE, makeInsideImages } from '../setup/images.ts';
import { say } from '../setup/model-replies.ts';
import { ROOT } from '../setup/processes.ts';
import { verifies } from '../setup/verifies.ts';

const MODEL = 'same-prompt';
const TASK = 'say hello';
/** Where the golden first request is kept; `vitest -u` writes it anew. */
const GOLDEN = '../data/first-request.txt';

/** All that differs between the first request of a plain Hermes in the task image and ours. */
const DIFFERENCES: readonly (readonly [why: string, from: RegExp | string, to: string])[] = [
  ['no call streams', / "stream": true,\n "stream_options": \{\n {2}"include_usage": true\n \},\n/, ''],
  ['the toolchain is not probed: it costs an exec, and tools say it better', /\nPython toolchain: [^\n]*\n/, ''],
  ['the home is the same in every rollout, for the prefix cache', '/tmp/plain-home', '/hermes'],
];

let docker: HermesFleet;
let local: HermesFleet;
beforeAll(async () => {
  await makeInsideImages(new Docker());
  docker = await startHermesFleet();
  local = await startHermesFleet({ provider: 'local' });
}, 120_000);
afterAll(async () => {
  await docker[Symbol.asyncDispose]();
  await local[Symbol.asyncDispose]();
});

/** A request as text, one line a line of its texts, without what belongs to this machine and day. */
function textOf(body: unknown): string {
  return JSON.stringify(body, Object.keys(flat(body)).toSorted(), 1)
    .replaceAll('\\n', '\n')
    .replaceAll(/Host: Linux \([^)]*\)/g, 'Host: Linux (RELEASE)')
    .replaceAll(/\b(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, \w+ \d\d?, \d{4}/g, 'DAY')
    .replaceAll(/\/tmp\/fleet-test-\w+\/[0-9a-f.]+\/workspace/g, '/workspace');
}

/** Every name of a member, at any depth: what `JSON.stringify` is to write, in one order. */
function flat(value: unknown): Record<string, true> {
  if (typeof value !== 'object' || value === null) return {};
  const own = Array.isArray(value) ? [] : Object.keys(value).map((name) => [name, true] as const);
  return Object.assign(Object.fromEntries(own), ...Object.values(value).map(flat)) as Record<string, true>;
}

async function firstRequest(fleet: HermesFleet, session: string, more: SeedMore = {}): Promise<string> {
  fleet.model.script(MODEL, say('hello'));
  const before = fleet.model.callsOf(MODEL).length;
  await fleet.client.submit({
    seed: fleet.seedOf(session, MODEL, more),
    activations: [{ session_id: session, activation_id: 'a', request: { input: TASK } }],
    close: { session_id: session, when: 'idle' },
  });
  expect((await fleet.client.wait(session, 'a')).class).toBe('ok');
  return textOf(fleet.model.callsOf(MODEL)[before]?.body);
}

async function plainRequest(): Promise<string> {
  docker.model.script(MODEL, say('hello'));
  const before = docker.model.callsOf(MODEL).length;
  const script = path.join(ROOT, 'test/setup/plain-hermes.py');
  const place = ['--network', 'host', '-v', `${script}:/plain.py:ro`, '-w', '/workspace', '--rm', HERMES_IMAGE];
  // A plain Hermes wants its answer as a stream, and fails on a whole one; what it asked first is what counts.
  await promisify(execFile)('docker', ['run', ...place, 'python3', '/plain.py', docker.model.url, MODEL, TASK]).catch(
    () => undefined,
  );
  return textOf(docker.model.callsOf(MODEL)[before]?.body);
}

verifies('hermes:same-prompt', 'one task gives the same first request apart, inside and local', async () => {
  const sandbox = { image: HERMES_IMAGE };
  const apart = await firstRequest(docker, 'same-apart', { sandbox });
  const inside = await firstRequest(docker, 'same-inside', { sandbox, hermes: { placement: 'inside' } });
  const onHost = await firstRequest(local, 'same-local');
  expect(inside).toBe(apart);
  // Its home is its folder.
  expect(onHost.replace('User home directory: /workspace', 'User home directory: /root')).toBe(apart);
  await expect(apart).toMatchFileSnapshot(GOLDEN);
});

verifies(
  'hermes:same-prompt',
  'it is the first request of a plain Hermes in that image, but for a listed set',
  async () => {
    let plain = await plainRequest();
    for (const [why, from, to] of DIFFERENCES) {
      const changed = plain.replace(from, to);
      expect(changed, why).not.toBe(plain);
      plain = changed;
    }
    await expect(plain).toMatchFileSnapshot(GOLDEN);
  },
);

test('the prompt names no backend, and nothing of the machine that Hermes runs on', async () => {
  const request = await firstRequest(docker, 'same-names', { sandbox: { image: HERMES_IMAGE } });
  expect(request).not.toMatch(/terminal backend|\bcontainer backend|\/tmp\/a\/|docker backend|runner/i);
});
