import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, test } from 'vitest';
import { checkSweepConfig, mergeRow, type SweepConfig } from '@hermes-fleet/producer/internal/sweep-config';
import { planOf, readTasks, type Tasks } from '@hermes-fleet/producer/internal/sweep-tasks';

const CONFIG: SweepConfig = {
  sandbox: { provider: 'stub', image: 'base', limits: { cpus: 1 } },
  model: { base_url: 'http://127.0.0.1:1/v1', name: 'echo', max_tokens: 100 },
  request: { temperature: 0.5, instructions: 'be brief' },
};
const MAX_BODY_BYTES = 64 * 1024 * 1024;

async function tasksOf(
  rows: string,
  options: { config?: SweepConfig; limit?: number; maxBodyBytes?: number } = {},
): Promise<Tasks> {
  const dir = await mkdtemp(path.join(tmpdir(), 'fleet-tasks-'));
  try {
    const file = path.join(dir, 'tasks.jsonl');
    await writeFile(file, rows);
    const tasks = await readTasks(file, { config: CONFIG, maxBodyBytes: MAX_BODY_BYTES, ...options });
    return { ...tasks, errors: tasks.errors.map((error) => error.slice(dir.length + 1)) };
  } finally {
    await rm(dir, { recursive: true });
  }
}
const read = async (name: string) =>
  await readTasks(`test/data/${name}`, { config: CONFIG, maxBodyBytes: MAX_BODY_BYTES });

test('every invalid row is named by file, line and field, and the valid one is kept', async () => {
  const { rows, errors } = await read('invalid_rows.jsonl');
  expect(rows.map(({ index, line }) => [index, line])).toEqual([[0, 1]]);
  expect(errors.map((error) => error.split(': ')[0])).toEqual(
    [2, 3, 4, 5, 6, 7, 8, 9, 10].map((line) => `test/data/invalid_rows.jsonl:${line}`),
  );
  for (const [index, part] of [
    'responses_create_params is missing',
    'responses_create_params.input',
    'stream',
    'unknown_key',
    'is not JSON',
    'is not a JSON object',
    'is not a JSON object',
    'params.input',
    'params.input',
  ].entries())
    expect(errors[index]).toContain(part);
});

test('odd rows are taken, but for those that ask for what Hermes cannot do', async () => {
  const { rows, errors } = await read('odd_inputs.jsonl');
  // An empty input, the role developer, and tools in the request.
  expect(errors.map((error) => error.split(':')[1])).toEqual(['3', '4', '9']);
  expect(errors[2]).toContain('tools are granted at seed');
  expect(rows.map(({ index }) => index)).toEqual(
    [0, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16].filter((index) => index < rows.length + 3),
  );
});

test('BOM, CRLF and blank lines are no rows, and an empty file has none', async () => {
  expect((await read('bom_crlf_blank.jsonl')).rows.map(({ line }) => line)).toEqual([1, 3, 5]);
  expect(await read('empty.jsonl')).toMatchObject({ rows: [], errors: [] });
});

test('halves of surrogate pairs in a row are no reason to refuse it', async () => {
  expect(await read('odd_surrogates.jsonl')).toMatchObject({
    rows: [{ index: 0 }, { index: 1 }, { index: 2 }],
    errors: [],
  });
});

test('a file that is not there is refused by name', async () => {
  await expect(read('no-such.jsonl')).rejects.toThrow(/test\/data\/no-such\.jsonl: cannot be read/);
});

test('a row wins over its configuration, one level deep', () => {
  const merged = mergeRow(
    CONFIG,
    {
      sandbox: { image: 'mine', limits: { pids: 32 } },
      budgets: { max_model_calls: 3 },
      request: { temperature: 0.1, top_p: 0.2 },
    },
    { input: 'x', top_p: 0.3 },
  );
  expect(merged.seed).toEqual({
    sandbox: { provider: 'stub', image: 'mine', limits: { pids: 32 } },
    model: CONFIG.model,
    budgets: { max_model_calls: 3 },
  });
  expect(merged.request).toEqual({ input: 'x', temperature: 0.1, top_p: 0.3, instructions: 'be brief' });
});

test('what is unknown or wrong in the configuration or in a session is named by its field', async () => {
  expect(() => checkSweepConfig({ sandboxes: {} }, 'c.json')).toThrow(/^c\.json: .*sandboxes/);
  expect(() => checkSweepConfig({ sandbox: { img: 'x' } }, 'c.json')).toThrow(/^c\.json: sandbox.*img/);
  expect(() => checkSweepConfig({ request: { stream: true } }, 'c.json')).toThrow(/^c\.json: request: stream/);
  expect(() => checkSweepConfig({ timeouts: { seed_s: 0 } }, 'c.json')).toThrow(/timeouts\.seed_s/);
  expect(checkSweepConfig({}, 'c.json')).toEqual({});
  const { errors } = await tasksOf(
    '{"responses_create_params":{"input":"x"},"session":{"sandbox":{"img":1}}}\n{"responses_create_params":{"input":"x"},"session":{"foo":1}}\n',
  );
  expect(errors[0]).toMatch(/^tasks\.jsonl:1: .*sandbox.*img/);
  expect(errors[1]).toMatch(/^tasks\.jsonl:2: session: .*foo/);
});

test('a model other than the session’s and a body that is too large are refused before anything is handed in', async () => {
  const other = '{"responses_create_params":{"input":"x","model":"other"}}\n';
  expect((await tasksOf(other)).errors[0]).toContain('model is "other"');
  const large = `{"responses_create_params":{"input":"${'x'.repeat(10_000)}"}}\n`;
  expect((await tasksOf(large, { maxBodyBytes: 12_000 })).errors[0]).toContain('12000 are allowed');
});

test('the limit takes rows from the front, and the digest is of the whole file', async () => {
  const row = '{"responses_create_params":{"input":"x"}}\n';
  const [all, one] = [await tasksOf(row.repeat(3)), await tasksOf(row.repeat(3), { limit: 1 })];
  expect(one.rows).toHaveLength(1);
  expect(one.digest).toBe(all.digest);
});

test.each([
  ['"task_id":"t-1","instance_id":"i"', 't-1'],
  ['"problem_id":2512292042121000001', '2512292042121000001'],
  ['"task_id":null,"instance_id":"set::demo"', 'set::demo'],
  ['"task_id":{"a":1}', '0'],
  ['"x":1', '0'],
])('the task id of {%s} is %s', async (fields, id) => {
  const { rows } = await tasksOf(`{"responses_create_params":{"input":"x"},${fields}}\n`);
  const [row] = rows;
  expect(row === undefined ? undefined : planOf(row, CONFIG).taskId).toBe(id);
});
