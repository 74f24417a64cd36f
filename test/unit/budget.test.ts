import { FleetError } from '@hermes-fleet/shared';
import { expect, test } from 'vitest';
import { Budget } from '@hermes-fleet/worker/capture/budget';

function refusal(budget: Budget): string {
  try {
    budget.takeCall();
  } catch (error) {
    if (error instanceof FleetError) return error.code;
    throw error;
  }
  return 'taken';
}

const usage = (inputTokens: number, outputTokens: number) => ({ inputTokens, outputTokens });

test('without limits any number of calls may be made, each as long as it asks for', () => {
  const budget = new Budget({}, undefined);
  for (let at = 0; at < 1000; at++) {
    expect(refusal(budget)).toBe('taken');
    budget.record(usage(1e9, 1e9));
  }
  expect(budget.allow(8192)).toBe(8192);
});

test('a number of calls is a number of calls, failed ones included', () => {
  const budget = new Budget({ max_model_calls: 2 }, undefined);
  expect([refusal(budget), refusal(budget), refusal(budget), refusal(budget)]).toEqual([
    'taken',
    'taken',
    'incomplete/max_model_calls',
    'incomplete/max_model_calls',
  ]);
});

test.each([
  ['max_input_tokens', usage(10, 0), usage(0, 99)],
  ['max_output_tokens', usage(0, 10), usage(99, 0)],
  ['max_total_tokens', usage(4, 6), usage(4, 5)],
] as const)('%s is used up at its limit, not before', (limit, used, harmless) => {
  const spent = new Budget({ [limit]: 10 }, undefined);
  expect(refusal(spent)).toBe('taken');
  spent.record(used);
  expect(refusal(spent)).toBe(`incomplete/${limit}`);
  const left = new Budget({ [limit]: 10 }, undefined);
  left.record(harmless);
  expect(refusal(left)).toBe('taken');
});

test('a call gets what is left of output and of the total, and never less than one token', () => {
  const budget = new Budget({ max_output_tokens: 100, max_total_tokens: 1000 }, undefined);
  expect(budget.allow(8192)).toBe(100);
  expect(budget.lowering).toBe('incomplete/max_output_tokens');
  budget.record(usage(850, 90));
  expect(budget.allow(8192)).toBe(10);
  budget.record(usage(55, 0));
  expect(budget.allow(8192)).toBe(5);
  expect(budget.lowering).toBe('incomplete/max_total_tokens');
  expect(budget.allow(3)).toBe(3);
  budget.record(usage(500, 0));
  expect(budget.allow(8192)).toBe(1);
});

test.each([
  [{ max_output_tokens: 50 }, 100, 50],
  [{ max_output_tokens: 100 }, 50, 50],
  [{}, 50, 50],
  [{ max_output_tokens: 50 }, undefined, 50],
])("of %j and the request's %s tokens the lower counts", (limits, requested, allowed) => {
  const budget = new Budget(limits, requested);
  expect(budget.allow(8192)).toBe(allowed);
  budget.record(usage(0, 50));
  expect(refusal(budget)).toBe('incomplete/max_output_tokens');
});
