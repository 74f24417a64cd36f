import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, inject, test, vi } from 'vitest';
import { startProgram } from '../setup/processes.ts';

const CLI = 'producer/src/cli.ts';
// Each call is a process that reads its sources anew.
vi.setConfig({ testTimeout: 90_000 });
let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(path.join(tmpdir(), 'fleet-cli-'));
});
afterAll(async () => await rm(dir, { recursive: true }));

interface Ended {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

async function cli(args: readonly string[], env: NodeJS.ProcessEnv = {}): Promise<Ended> {
  await using program = startProgram(CLI, args, env);
  let [stdout, stderr] = ['', ''];
  program.process.stdout?.on('data', (chunk) => (stdout += chunk));
  program.process.stderr?.on('data', (chunk) => (stderr += chunk));
  return { status: await program.exited, stdout, stderr };
}

const fleet = (): NodeJS.ProcessEnv => ({ FLEET_REDIS_URL: inject('redisUrl'), FLEET_ID: path.basename(dir) });

test.each(['--help', '--version', 'run --help', 'complete -- run --re'])(
  '%s needs neither Redis nor BullMQ nor our schemas',
  async (words) => {
    const loader = path.join(dir, 'trace.mjs');
    await writeFile(
      loader,
      `import { register } from 'node:module';
       register('data:text/javascript,' + encodeURIComponent(\`import { writeSync } from 'node:fs';
         export async function load(url, context, next) { writeSync(2, 'LOADED ' + url + '\\\\n'); return next(url, context); }\`));`,
    );
    const { status, stderr, stdout } = await cli(words.split(' '), { NODE_OPTIONS: `--import ${loader}` });
    expect(status).toBe(0);
    expect(stdout).not.toBe('');
    expect(stderr).toContain('commander');
    expect(stderr).not.toMatch(/LOADED .*(bullmq|ioredis|shared\/(src|dist)|zod)/);
  },
);

test('bad usage is 64 and one line, or one JSON object', async () => {
  expect(await cli(['rnu'])).toMatchObject({
    status: 64,
    stderr: "hermes-fleet: unknown command 'rnu' (Did you mean run?)\n",
  });
  const { status, stderr } = await cli(['run', 'x', '-o', 'y', '-k', '0', '--json']);
  expect(status).toBe(64);
  expect(JSON.parse(stderr)).toMatchObject({
    error: { code: 'refused/invalid', message: expect.stringContaining('-k, --repeats') },
  });
  expect(await cli(['cancel'], fleet())).toMatchObject({ status: 64 });
});

test('a Redis that is not named is 78, and one that does not answer is 69', async () => {
  expect(await cli(['status', 's'])).toMatchObject({ status: 78, stderr: expect.stringContaining('FLEET_REDIS_URL') });
  const away = await cli(['status', 's', '--redis', 'redis://127.0.0.1:1', '--json']);
  expect(away.status).toBe(69);
  expect(JSON.parse(away.stderr)).toMatchObject({ error: { code: 'refused/redis' } });
});

test('settings of a worker in the same environment are none of our business, and our own are checked', async () => {
  const unknown = { status: 64, stderr: expect.stringContaining('"nobody" is not known') };
  expect(await cli(['status', 'nobody'], { ...fleet(), FLEET_CONCURRENCY: '4', FLEET_LOCAL_ROOT: '/x' })).toMatchObject(
    unknown,
  );
  expect(await cli(['status', 'nobody'], { ...fleet(), FLEET_MAX_BODY_MIB: 'x' })).toMatchObject({ status: 78 });
});

test('no tasks are done at once, without Redis', async () => {
  expect(await cli(['run', 'test/data/empty.jsonl', '-o', path.join(dir, 'empty.jsonl')])).toEqual({
    status: 0,
    stdout: '0 tasks\n',
    stderr: '',
  });
});

test('a tasks file with invalid rows hands nothing in, and leaves nothing', async () => {
  const config = path.join(dir, 'config.json');
  await writeFile(
    config,
    JSON.stringify({ sandbox: { image: 'x' }, model: { base_url: 'http://127.0.0.1:1', name: 'm' } }),
  );
  const before = await readdir(dir);
  const { status, stderr } = await cli(
    ['run', 'test/data/invalid_rows.jsonl', '--config', config, '-o', path.join(dir, 'bad.jsonl')],
    fleet(),
  );
  expect(status).toBe(64);
  expect(stderr.split('\n').filter((line) => line.includes('invalid_rows.jsonl:'))).toHaveLength(9);
  expect(stderr).toContain('9 of 10 tasks are not valid, and nothing was handed in');
  expect(await readdir(dir)).toEqual(before);
});
