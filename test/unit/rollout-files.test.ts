import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import {
  LineWriter,
  readRecorded,
  repairTail,
  rolloutFiles,
  type RolloutFiles,
} from '@hermes-fleet/producer/internal/rollout-files';

let dir: string;
let files: RolloutFiles;
beforeEach(async () => {
  dir = await mkdtemp(path.join(tmpdir(), 'fleet-files-'));
  files = rolloutFiles(path.join(dir, 'out.jsonl'));
});
afterEach(async () => await rm(dir, { recursive: true }));

const record = (task: number, text = 'Größe 🙂 漢'): string =>
  JSON.stringify({
    text,
    _ng_task_index: task,
    _ng_rollout_index: 0,
    fleet: { class: 'ok', row_digest: `d${task}`, usage: { total: { total_tokens: 5 } } },
  });
const failure = (task: number, attempt: number): string =>
  JSON.stringify({ _ng_task_index: task, _ng_rollout_index: 0, attempt, row_digest: 'd' });

test('a crash at any byte of the last record loses that record at most, and glues nothing to it', async () => {
  const first = Buffer.from(`${record(0)}\n`);
  const whole = Buffer.from(record(1));
  for (let kept = 0; kept <= whole.length; kept++) {
    await writeFile(files.out, Buffer.concat([first, whole.subarray(0, kept)]));
    const { done } = await readRecorded(files);
    expect([...done.keys()]).toEqual(kept === whole.length ? ['0/0', '1/0'] : ['0/0']);
    {
      await using writer = await LineWriter.open(files.out);
      await writer.write(record(2));
    }
    const lines = (await readFile(files.out, 'utf8')).split('\n');
    expect(lines.pop()).toBe('');
    expect(lines.map((line) => (JSON.parse(line) as { _ng_task_index: number })._ng_task_index)).toEqual(
      kept === whole.length ? [0, 1, 2] : [0, 2],
    );
  }
});

test('a file of one torn record is emptied, also when it is longer than one block', async () => {
  await writeFile(files.out, record(0, 'x'.repeat(200_000)).slice(0, -1));
  await repairTail(files.out);
  expect(await readFile(files.out, 'utf8')).toBe('');
  await writeFile(files.out, `${record(0)}\n${record(1, 'x'.repeat(200_000)).slice(0, -1)}`);
  await repairTail(files.out);
  expect(await readFile(files.out, 'utf8')).toBe(`${record(0)}\n`);
});

test('the next attempt follows the last one that failed, and files that are not there hold nothing', async () => {
  expect(await readRecorded(files)).toEqual({ done: new Map(), nextAttempt: new Map() });
  await writeFile(files.failures, `${failure(3, 0)}\n${failure(3, 1)}\n${failure(4, 0)}\n${failure(4, 1).slice(0, 9)}`);
  const { nextAttempt } = await readRecorded(files);
  expect([...nextAttempt]).toEqual([
    ['3/0', 2],
    ['4/0', 1],
  ]);
});

test('a line in the middle that is no record of a sweep is refused by file and line', async () => {
  await writeFile(files.out, `${record(0)}\n{"_ng_task_index":1}\n${record(2)}\n`);
  await expect(readRecorded(files)).rejects.toThrow(/out\.jsonl:2: is not a record/);
});

test('lines are written one after the other, whole, however many are handed in at once', async () => {
  {
    await using writer = await LineWriter.open(files.out);
    await Promise.all(
      Array.from({ length: 50 }, async (_, task) => await writer.write(record(task, 'x'.repeat(task * 997)))),
    );
  }
  expect((await readRecorded(files)).done.size).toBe(50);
});

test('a file that cannot be written is an error of the operator', async () => {
  await expect(LineWriter.open(path.join(dir, 'no', 'out.jsonl'))).rejects.toMatchObject({ code: 'refused/config' });
  await using writer = await LineWriter.open('/dev/full');
  await expect(writer.write('x')).rejects.toMatchObject({ code: 'refused/config' });
  await expect(writer.write('x')).rejects.toMatchObject({ code: 'refused/config' });
});
