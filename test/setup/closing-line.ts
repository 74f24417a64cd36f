import { writeFileSync } from 'node:fs';
import type { Reporter, SerializedError, TestModule, TestRunEndReason } from 'vitest/node';

/** A project that this machine cannot run, and what it would take. */
export interface LeftOut {
  readonly name: string;
  readonly needs: readonly string[];
}

export interface Counts {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}

/**
 * Counts a run as it went, not as vitest counts it: a file that did not load, a failed hook, an error outside of any test
 * and an interrupted run are failures too.
 */
export function count(
  modules: readonly TestModule[],
  unhandled: readonly SerializedError[],
  reason: TestRunEndReason,
): Counts {
  let passed = 0;
  let skipped = 0;
  let failed = unhandled.length + (reason === 'interrupted' ? 1 : 0);
  for (const module of modules) {
    const states = [...module.children.allTests()].map((test) => test.result().state);
    const own = states.filter((state) => state === 'failed').length;
    passed += states.filter((state) => state === 'passed').length;
    skipped += states.filter((state) => state === 'skipped' || state === 'pending').length;
    failed += own === 0 && !module.ok() ? 1 : own;
  }
  return { passed, failed, skipped };
}

export function closingLine({ passed, failed, skipped }: Counts): string {
  return `${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}`;
}

/** Ends a run with what was left out and why, and with the plain line `N passed, N failed`. */
export class ClosingLine implements Reporter {
  readonly #leftOut: readonly LeftOut[];

  constructor(leftOut: readonly LeftOut[]) {
    this.#leftOut = leftOut;
  }

  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly SerializedError[], reason: TestRunEndReason): void {
    // eslint-disable-next-line node/no-process-env -- a reporter has no main that could hand these in
    const { FLEET_TEST_REQUIRE: required, FLEET_TEST_SUMMARY: summary } = process.env;
    const lines = this.#leftOut.map(({ name, needs }) => `left out: test/${name}, which needs ${needs.join(', and ')}`);
    const counts = count(modules, unhandled, reason);
    const must = required === 'all' ? this.#leftOut.length : 0;
    if (must > 0) process.exitCode = 1;
    const closing = closingLine({ ...counts, failed: counts.failed + must });
    process.stdout.write(`\n${[...lines, closing].join('\n')}\n`);
    if (summary !== undefined) writeFileSync(summary, `${closing}\n`);
  }
}
