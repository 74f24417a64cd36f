import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, expect, inject, test } from 'vitest';
import { runCommand } from '@hermes-fleet/producer/internal/commands/run';
import type { SweepSummary } from '@hermes-fleet/producer/internal/sweep-summary';
import { startFleet, type TestFleet } from '../setup/fleet.ts';
import { invoke, type Invoked } from '../setup/invoke.ts';
import { echoScript } from '../setup/model-scripts.ts';
import { hold, say, sequence, status, textOf } from '../setup/model-replies.ts';
import { startProgram } from '../setup/processes.ts';

const LONG_MS = 90_000;
let fleet: TestFleet;
let dir: string;
beforeAll(async () => {
  fleet = await startFleet({ redisUrl: inject('redisUrl') });
});
afterAll(async () => await fleet[Symbol.asyncDispose]());
beforeEach(async () => {
  dir = await mkdtemp(path.join(tmpdir(), 'fleet-sweep-'));
});
afterEach(async () => await rm(dir, { recursive: true }));

const at = (name: string): string => path.join(dir, name);

interface ResultLine {
  readonly _ng_task_index: number;
  readonly _ng_rollout_index: number;
  readonly question: string;
  readonly response: { readonly output: readonly { readonly content?: readonly { readonly text: string }[] }[] };
  readonly fleet: {
    readonly class: string;
    readonly code: string;
    readonly attempt: number;
    readonly session_id: string;
  };
}

const linesOf = async <T>(file: string): Promise<T[]> =>
  (await readFile(at(file), 'utf8'))
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line) as T);
const results = async (): Promise<ResultLine[]> =>
  (await linesOf<ResultLine>('out.jsonl')).toSorted((one, other) => one._ng_task_index - other._ng_task_index);
const answerOf = (line: ResultLine): string | undefined => line.response.output.at(-1)?.content?.[0]?.text;

async function writeTasks(rows: readonly object[], model = 'echo'): Promise<void> {
  await writeFile(at('tasks.jsonl'), rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  await writeFile(
    at('config.json'),
    JSON.stringify({ sandbox: { provider: 'stub', image: 'none' }, model: { base_url: fleet.model.url, name: model } }),
  );
}
const task = (question: string, more: object = {}): object => ({
  responses_create_params: { input: question },
  question,
  ...more,
});

const args = (...more: readonly string[]): string[] => [
  at('tasks.jsonl'),
  '-o',
  at('out.jsonl'),
  '--config',
  at('config.json'),
  ...more,
];
const run = async (more: readonly string[] = [], signal?: AbortSignal): Promise<Invoked> =>
  await invoke(runCommand, args(...more), {
    redisUrl: inject('redisUrl'),
    fleetId: fleet.id,
    ...(signal === undefined ? {} : { signal }),
  });
const summaryOf = ({ stdout }: Invoked): SweepSummary => JSON.parse(stdout) as SweepSummary;

test('every rollout has one line, with its own row and its own answer', { timeout: LONG_MS }, async () => {
  const questions = ['same', 'same', 'half \ud83d', 'sep \u{2028} arator', 'Größe 🙂'];
  await writeTasks(questions.map((question, id) => task(question, { id, instance_id: `set::${id}` })));
  const ended = await run(['-k', '2', '-c', '4', '--json', '--quiet']);
  expect(ended).toMatchObject({ status: 0, stderr: '' });
  expect(summaryOf(ended)).toMatchObject({ expected: 10, counts: { ok: 10, infra: 0 }, refused: 0, retries: 0 });
  const lines = await results();
  expect(new Set(lines.map((line) => `${line._ng_task_index}/${line._ng_rollout_index}`)).size).toBe(10);
  for (const line of lines) {
    const question = Buffer.from(questions[line._ng_task_index] ?? '').toString();
    expect(line.question).toBe(question);
    expect(answerOf(line)).toBe(question);
    expect(line.fleet).toMatchObject({ class: 'ok', attempt: 0, reward_valid: true });
  }
  expect(await readFile(at('out_failures.jsonl'), 'utf8')).toBe('');
  expect(JSON.parse(await readFile(at('out_manifest.json'), 'utf8'))).toMatchObject({
    round: 1,
    hermes_versions: ['stub'],
  });
  expect(await run()).toMatchObject({ status: 64, stderr: expect.stringContaining('is not empty') });
});

test('one bad task ends no other, and each failed attempt is written down', { timeout: LONG_MS }, async () => {
  fleet.model.script('flaky', (request, call) => {
    const text = textOf(request.messages.at(-1));
    if (text === 'bad') return status(401);
    return text === 'later' && call < 1 ? status(400) : say(text);
  });
  await writeTasks(
    [task('good'), task('bad'), task('no image', { session: { sandbox: { provider: 'nobody' } } }), task('fine')],
    'flaky',
  );
  const ended = await run(['-c', '4', '--json', '--quiet', '--retries', '1', '--deadline', '5']);
  expect(ended.status).toBe(1);
  const { counts, expected } = summaryOf(ended);
  expect(expected).toBe(4);
  expect(counts).toMatchObject({ ok: 2, infra: 2 });
  expect((await results()).map(answerOf)).toEqual(['good', 'fine']);
  const failures = await linesOf<{
    class: string;
    code: string;
    attempt: number;
    _ng_task_index: number;
    _ng_failure_terminal: boolean;
  }>('out_failures.jsonl');
  expect(failures.filter(({ _ng_task_index }) => _ng_task_index === 1).map(({ code }) => code)).toEqual(['model_auth']);
  expect(failures.filter(({ _ng_task_index }) => _ng_task_index === 2)).toMatchObject([
    { class: 'infra', code: 'worker_lost', attempt: 0, _ng_failure_terminal: false },
    { class: 'infra', code: 'worker_lost', attempt: 1, _ng_failure_terminal: true },
  ]);
});

test(
  'what failed is run again by --resume with numbers that go on, and what is done is kept',
  { timeout: LONG_MS },
  async () => {
    const calls: string[] = [];
    let isBroken = true;
    fleet.model.script('mending', ({ messages }) => {
      const text = textOf(messages.at(-1));
      calls.push(text);
      return isBroken && text === 'b' ? status(401) : say(text);
    });
    await writeTasks([task('a'), task('b'), task('c')], 'mending');
    expect((await run(['--quiet'])).status).toBe(1);
    isBroken = false;
    calls.length = 0;
    const resumed = await run(['--resume', '--json', '--quiet']);
    expect(resumed.status).toBe(0);
    expect(summaryOf(resumed)).toMatchObject({ expected: 3, counts: { ok: 3 }, resumed: 2, attempts: 1 });
    expect(calls).toEqual(['b']);
    const lines = await results();
    expect(lines.map((line) => [line._ng_task_index, line.fleet.attempt])).toEqual([
      [0, 0],
      [1, 1],
      [2, 0],
    ]);
    expect(await run(['--resume', '--json', '--quiet'])).toMatchObject({ status: 0 });
    expect(await linesOf('out.jsonl')).toHaveLength(3);
  },
);

test('a producer that was killed joins what still runs, and pays for nothing twice', { timeout: LONG_MS }, async () => {
  const held = hold(echoScript);
  fleet.model.script('held', sequence([echoScript, held.script]));
  await writeTasks([task('first'), task('second')], 'held');
  const before = fleet.model.calls.length;
  {
    await using program = startProgram('producer/src/cli.ts', ['run', ...args('-c', '1', '--quiet')], {
      FLEET_REDIS_URL: inject('redisUrl'),
      FLEET_ID: fleet.id,
    });
    await expect.poll(() => held.isHolding, { timeout: 60_000 }).toBe(true);
    program.process.kill('SIGKILL');
    await program.exited;
  }
  const whole = await readFile(at('out.jsonl'));
  await writeFile(at('out.jsonl'), whole.subarray(0, -20));
  const resumed = run(['--resume', '--json', '--quiet', '-c', '2']);
  held.release();
  expect(summaryOf(await resumed)).toMatchObject({ expected: 2, counts: { ok: 2 }, resumed: 0 });
  expect((await results()).map(answerOf)).toEqual(['first', 'second']);
  expect(fleet.model.calls.length - before).toBe(2);
});

test('Ctrl-C cancels what runs, counts all, and the rest can be resumed', { timeout: LONG_MS }, async () => {
  const held = hold(echoScript);
  fleet.model.script('endless', sequence([echoScript, held.script]));
  await writeTasks([task('1'), task('2'), task('3')], 'endless');
  const stop = new AbortController();
  const running = run(['-c', '1', '--json', '--quiet'], stop.signal);
  await expect.poll(() => held.isHolding, { timeout: 30_000 }).toBe(true);
  stop.abort();
  const ended = await running;
  expect(ended.status).toBe(130);
  expect(summaryOf(ended)).toMatchObject({ expected: 3, counts: { ok: 1, cancelled: 2 } });
  held.release();
  fleet.model.script('endless', echoScript);
  const resumed = await run(['--resume', '--json', '--quiet']);
  expect(summaryOf(resumed)).toMatchObject({ expected: 3, counts: { ok: 3 }, resumed: 1 });
  expect(resumed.status).toBe(0);
});

test(
  'Ctrl-C on the command line cancels in good order, and a plain log says where it stands',
  { timeout: LONG_MS },
  async () => {
    const held = hold(echoScript);
    fleet.model.script('held at the terminal', held.script);
    await writeTasks([task('1'), task('2')], 'held at the terminal');
    await using program = startProgram('producer/src/cli.ts', ['run', ...args()], {
      FLEET_REDIS_URL: inject('redisUrl'),
      FLEET_ID: fleet.id,
      // A worker's own setting is none of the producer's business.
      FLEET_CONCURRENCY: '3',
    });
    await expect.poll(() => held.isHolding, { timeout: 60_000 }).toBe(true);
    program.process.kill('SIGINT');
    expect(await program.exited).toBe(130);
    held.release();
    expect(program.output()).toContain('2/2 (100 %)  ok 0  incomplete 0  failed 0  infra 0  cancelled 2');
    expect(program.output()).toMatch(/│ cancelled\s*│\s*2 │/);
  },
);

test('a sweep that somebody else cancels ends, and can be resumed', { timeout: LONG_MS }, async () => {
  const held = hold(echoScript);
  fleet.model.script('cancelled', held.script);
  await writeTasks([task('1'), task('2')], 'cancelled');
  const running = run(['-c', '1', '--json', '--quiet', '--sweep-id', 'outside']);
  await expect.poll(() => held.isHolding, { timeout: 30_000 }).toBe(true);
  await fleet.client.cancel({ sweepId: 'outside' });
  const ended = await running;
  expect(ended.status).toBe(1);
  expect(summaryOf(ended)).toMatchObject({ expected: 2, counts: { cancelled: 2 } });
  held.release();
  expect(await run(['--resume', '--quiet'])).toMatchObject({ status: 0 });
  expect((await results()).map(answerOf)).toEqual(['1', '2']);
});

test('invalid tasks are left out on request, and the status says so', { timeout: LONG_MS }, async () => {
  await writeTasks([task('a'), { question: 'none' }, task('c')]);
  const ended = await run(['--skip-invalid', '--json', '--quiet']);
  expect(ended).toMatchObject({
    status: 1,
    stderr: expect.stringContaining('tasks.jsonl:2: responses_create_params is missing'),
  });
  expect(summaryOf(ended)).toMatchObject({ expected: 2, counts: { ok: 2 }, refused: 1 });
  expect((await results()).map((line) => line._ng_task_index)).toEqual([0, 2]);
});
