import { spawnSync } from 'node:child_process';
import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import { membersOf } from '@hermes-fleet/producer/internal/json-members';
import { type AttemptEnd, failureLine, resultLine, safeLine } from '@hermes-fleet/producer/internal/rollout-record';

const END: AttemptEnd = {
  sessionId: 's/1',
  attempt: 0,
  class: 'ok',
  code: 'done',
  fault: 'none',
  retryable: false,
  rewardValid: true,
  message: null,
  activation: undefined,
  close: undefined,
};
const at = (text: string) => ({ row: { index: 4, line: 5, text, digest: 'd' }, rollout: 1 });

test('members of an object are what JSON.parse finds in it', () => {
  fc.assert(
    fc.property(
      fc.dictionary(fc.string({ unit: 'binary' }), fc.jsonValue()),
      fc.constantFrom(undefined, 2, '\t'),
      (object, indent) => {
        const json = JSON.stringify(object, null, indent);
        const parsed = JSON.parse(json) as Record<string, unknown>;
        const members = membersOf(json);
        expect(Object.fromEntries(members.map(({ key, value }) => [key, JSON.parse(value)]))).toEqual({ ...parsed });
        expect(JSON.parse(`{${members.map(({ text }) => text).join(',')}}`)).toEqual(parsed);
      },
    ),
    { numRuns: 150 },
  );
});

test('numbers of the row travel digit by digit', () => {
  const line = resultLine(
    at('{"id": 2512292042121000001, "huge":1e400 ,"zero":-0.0,"deep":{"n":[9007199254740993]}}'),
    END,
    false,
  );
  expect(line).toContain('"id": 2512292042121000001');
  expect(line).toContain('"huge":1e400');
  expect(line).toContain('"zero":-0.0');
  expect(line).toContain('[9007199254740993]');
  expect(JSON.parse(line)).toMatchObject({
    _ng_task_index: 4,
    _ng_rollout_index: 1,
    fleet: { session_id: 's/1', class: 'ok' },
  });
});

test('our fields win over fields of the row with the same name, however the row spells them', () => {
  const line = resultLine(
    at(
      String.raw`{"_ng_task_index": 99, "\u005fng_rollout_index": 98, "response": {"a": "}"}, "fleet": [1], "x": 1, "x": 2, "_ng_attempt_index": 7}`,
    ),
    END,
    false,
  );
  expect(membersOf(line).map(({ key }) => key)).toEqual([
    'x',
    '_ng_task_index',
    '_ng_rollout_index',
    'response',
    'fleet',
  ]);
  expect(line.match(/"_ng_task_index"/g)).toHaveLength(1);
  expect(JSON.parse(line)).toMatchObject({ x: 2, _ng_task_index: 4, _ng_rollout_index: 1, response: null });
});

test('an empty row and one of a single field are spliced', () => {
  expect(JSON.parse(resultLine(at('{}'), END, false))).toMatchObject({ _ng_task_index: 4 });
  expect(JSON.parse(resultLine(at('{ }'), { ...END, attempt: 2 }, false))).toMatchObject({ _ng_attempt_index: 2 });
});

test('halves of surrogate pairs become U+FFFD, pairs and escaped backslashes stay', () => {
  expect(safeLine(String.raw`"\ud83d x \udf78 \ud83c\udf78 \\ud83d \ud83d\ud83c\udf78"`)).toBe(
    String.raw`"\ufffd x \ufffd \ud83c\udf78 \\ud83d \ufffd\ud83c\udf78"`,
  );
});

test('a line is one line for every reader, and Python can encode it', () => {
  const value = { a: 'x\u{2028}y\u{2029}z\u{85}w\rv\u{b}\u{c}\u{1c}', b: '\ud83d', c: '🙂', d: String.raw`\u2028` };
  const line = safeLine(`{"v":${JSON.stringify(value)},\r"w":1}`);
  const script =
    'import sys,json\nt=sys.stdin.buffer.read().decode()\nassert len(t.splitlines())==1, t.splitlines()\nprint(json.loads(t)["v"]["a"].encode().hex(), json.dumps(json.loads(t), ensure_ascii=False).encode().decode()[:0])';
  const python = spawnSync('python3', ['-c', script], { input: line, encoding: 'utf8' });
  expect(python.stderr).toBe('');
  expect(python.stdout.trim()).toBe(Buffer.from(value.a).toString('hex'));
  expect(JSON.parse(line)).toEqual({ v: { ...value, b: '\u{fffd}' }, w: 1 });
});

test('a safe line says what the text said, but for halves of pairs', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), (text) => {
      const line = safeLine(JSON.stringify(text));
      expect(JSON.parse(line)).toBe(Buffer.from(text).toString());
      expect(line).not.toMatch(/[\n\r\u0085\u2028\u2029]/);
    }),
    { numRuns: 150 },
  );
});

test('a failure line names the attempt, and whether it was the last', () => {
  const end = {
    ...END,
    class: 'infra',
    code: 'worker_lost',
    fault: 'infrastructure',
    retryable: true,
    rewardValid: false,
    attempt: 1,
  } as const;
  expect(JSON.parse(failureLine(at('{}'), end, true))).toMatchObject({
    _ng_task_index: 4,
    _ng_rollout_index: 1,
    _ng_attempt_index: 1,
    _ng_failure_class: 'infra/worker_lost',
    _ng_failure_terminal: true,
    line: 5,
    attempt: 1,
  });
});
