import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  noCounts,
  percentOf,
  progressLine,
  progressLines,
  type SweepState,
} from '@hermes-fleet/producer/internal/sweep-progress';
import { checkSum, type SweepSummary, summaryText } from '@hermes-fleet/producer/internal/sweep-summary';

const state = (change: Partial<SweepState>): SweepState => ({
  expected: 100,
  counts: noCounts(),
  resumed: 0,
  running: 0,
  retries: 0,
  tokens: 0,
  elapsedMs: 60_000,
  ...change,
});

test('a resumed sweep begins at what is done, and its rate knows only its own work', () => {
  const lines = progressLines(state({ counts: { ...noCounts(), ok: 70, infra: 2 }, resumed: 70, running: 8 }));
  expect(lines[0]).toContain('72 %  72/100 rollouts, 8 running');
  expect(lines[1]).toContain('ok 70  incomplete 0  failed 0  infra 2  cancelled 0');
  expect(lines[2]).toContain('2.0/min  ETA 14m00s');
});

test('one of a thousand left is 99 %, and none left is 100 %', () => {
  expect(percentOf(state({ expected: 1000, counts: { ...noCounts(), ok: 999 } }))).toBe(99);
  expect(percentOf(state({ expected: 1000, counts: { ...noCounts(), ok: 999, failed: 1 } }))).toBe(100);
});

test('percents never fall and never pass 100', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 10_000 }), fc.nat(10_000), (expected, done) => {
      const at = (ok: number) => percentOf(state({ expected, counts: { ...noCounts(), ok } }));
      expect(at(done + 1)).toBeGreaterThanOrEqual(at(done));
      expect(at(done)).toBeLessThanOrEqual(done < expected ? 99 : 100);
    }),
  );
});

test('attempts tried again are shown, and are not done', () => {
  const again = state({ counts: { ...noCounts(), ok: 10 }, retries: 3, running: 5 });
  expect(progressLines(again)[1]).toContain('(3 retries)');
  expect(progressLine(again)).toContain('10/100 (10 %)');
});

test('a sum that does not hold is an error that names both sides', () => {
  expect(() => checkSum(3, { ...noCounts(), ok: 2, infra: 1 })).not.toThrow();
  expect(() => checkSum(4, { ...noCounts(), ok: 2, infra: 1 })).toThrow(/4 rollouts were expected.*= 3/);
});

test('the final table has no colours and says what became of each class', () => {
  const summary: SweepSummary = {
    sweep_id: 'nightly',
    expected: 4,
    counts: { ...noCounts(), ok: 2, incomplete: 1, infra: 1 },
    codes: { 'ok/done': 2, 'incomplete/max_turns': 1, 'infra/worker_lost': 1 },
    refused: 1,
    resumed: 0,
    attempts: 6,
    retries: 2,
    tokens: 1234,
    elapsed_ms: 61_000,
    out: 'out.jsonl',
    failures: 'out_failures.jsonl',
    manifest: 'out_manifest.json',
  };
  const text = summaryText(summary);
  expect(text).not.toContain('\u{1b}');
  expect(text).toMatch(/incomplete\s*│\s*1\s*│ max_turns 1/);
  expect(text).toContain('6 attempts (2 of them again), 1.2k tokens, 1m01s');
  expect(text).toContain('1 rows were refused');
});
