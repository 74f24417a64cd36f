import { boundary, FAILURES, FleetError, reasonOf, RESULT_CLASSES, verdictOf } from '@hermes-fleet/shared';
import { expect, test } from 'vitest';

type Line = readonly [fault: string, retryable: boolean, rewardValid: boolean, codes: string];

const LIMIT = ['limit', false, true] as const;
const AGENT = ['agent', false, true] as const;
const INFRASTRUCTURE = ['infrastructure', true, false] as const;
const OPERATOR = ['operator', false, false] as const;
const CALLER = ['caller', false, false] as const;

/** design.md §9, row by row, and what the code added to it. */
const TABLE: Readonly<Record<string, readonly Line[]>> = {
  ok: [
    ['none', false, true, 'done'],
    ['none', false, false, 'nothing_to_close'],
  ],
  incomplete: [
    [
      ...LIMIT,
      'max_turns max_model_calls max_input_tokens max_output_tokens max_total_tokens wall_time idle_time length',
    ],
  ],
  failed: [[...AGENT, 'no_answer content_filter bad_tool_calls context_exceeded']],
  infra: [
    [...INFRASTRUCTURE, 'model_unreachable model_rate_limited model_bad_reply mcp_unreachable mcp_bad'],
    [...INFRASTRUCTURE, 'sandbox_create sandbox_lost sandbox_oom sandbox_exec sandbox_disk'],
    [...INFRASTRUCTURE, 'runner_start runner_lost runner_oom hermes_crashed worker_lost engine_lost'],
    [...INFRASTRUCTURE, 'timeout_seed timeout_connect timeout_close redis'],
    [...OPERATOR, 'model_auth sandbox_image sandbox_no_shell sandbox_limit credential'],
    ['capacity', true, false, 'capacity'],
    ['bug', true, false, 'internal'],
  ],
  cancelled: [[...CALLER, 'by_caller by_close expired']],
  refused: [
    [...CALLER, 'invalid grant_unsupported session_unknown session_closed session_conflict too_large'],
    [...OPERATOR, 'config'],
    ['capacity', true, false, 'retry_later'],
    [...INFRASTRUCTURE, 'redis'],
  ],
  internal: [
    ['bug', true, false, 'fenced'],
    [...OPERATOR, 'drain'],
    [...INFRASTRUCTURE, 'lease_lost'],
  ],
};

test('the table of failures is the one of the design', () => {
  const expected = Object.entries(TABLE).flatMap(([name, lines]) =>
    lines.flatMap(([fault, retryable, rewardValid, codes]) =>
      codes.split(' ').map((code) => [`${name}/${code}`, { fault, retryable, rewardValid }]),
    ),
  );
  expect(FAILURES).toEqual(Object.fromEntries(expected));
});

test('no fault of the infrastructure, of an operator or of a caller may be scored or be a result of the agent', () => {
  for (const [code, line] of Object.entries(FAILURES)) {
    const isScored = ['ok/done', 'incomplete', 'failed'].some((scored) => code.startsWith(scored));
    expect({ code, rewardValid: line.rewardValid }).toEqual({ code, rewardValid: isScored });
  }
});

test('a stored result finds its line, ok without a code too, and an unknown code finds none', () => {
  expect(verdictOf('ok', '')).toBe(FAILURES['ok/done']);
  expect(verdictOf('infra', 'redis')).toBe(FAILURES['infra/redis']);
  for (const [name, code] of [
    ['infra', ''],
    ['infra', 'new_code'],
    ['', ''],
    ['ok', 'constructor'],
  ] as const)
    expect(verdictOf(name, code)).toBeUndefined();
  expect(RESULT_CLASSES).toEqual(['ok', 'incomplete', 'failed', 'infra', 'cancelled']);
});

test('a FleetError knows its class, its short code and its line', () => {
  const cause = new Error('ECONNRESET');
  const error = new FleetError('refused/retry_later', 'too much waits', { cause, retryAfterMs: 5 });
  expect(error).toMatchObject({
    name: 'FleetError',
    resultClass: 'refused',
    shortCode: 'retry_later',
    retryAfterMs: 5,
  });
  expect(error).toMatchObject({ fault: 'capacity', retryable: true, cause });
  expect('cause' in new FleetError('infra/redis', 'x')).toBe(false);
});

test('a reason tells an error with its causes in one line', () => {
  const inner = new AggregateError([new Error('v4\nrefused'), 'v6'], '');
  expect(reasonOf(new Error('connect', { cause: inner }))).toBe('connect: v4 refused; v6');
  expect(reasonOf(new TypeError(''))).toBe('TypeError');
  expect(reasonOf(undefined)).toBe('undefined');
});

test('a reason ends where an error is its own cause', () => {
  const error = new Error('round');
  error.cause = new Error('and round', { cause: error });
  expect(reasonOf(error)).toBe('round: and round: Error');
});

test('a boundary gives what a library throws a code, and lets a FleetError pass', async () => {
  const own = new FleetError('infra/redis', 'away');
  await expect(boundary('infra/internal', 'what', async () => await Promise.reject(own))).rejects.toBe(own);
  const cause = new Error('ENOENT');
  await expect(
    boundary('infra/sandbox_exec', 'exec failed', async () => await Promise.reject(cause)),
  ).rejects.toMatchObject({
    code: 'infra/sandbox_exec',
    message: 'exec failed',
    cause,
  });
  await expect(boundary('infra/internal', 'what', async () => await Promise.resolve(7))).resolves.toBe(7);
});
