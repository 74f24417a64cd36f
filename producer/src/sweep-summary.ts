import Table from 'cli-table3';
import { FleetError, RESULT_CLASSES, type ResultClass } from '@hermes-fleet/shared';
import { type ClassCounts, duration, short, sumOf } from './sweep-progress.ts';

/** What became of a sweep. */
export interface SweepSummary {
  readonly sweep_id: string;
  readonly expected: number;
  readonly counts: ClassCounts;
  /** Terminal rollouts of this process by `class/code`. */
  readonly codes: Readonly<Record<string, number>>;
  /** Rows that were not valid, and left out by `--skip-invalid`. */
  readonly refused: number;
  /** Rollouts that earlier processes had ended. */
  readonly resumed: number;
  readonly attempts: number;
  readonly retries: number;
  readonly tokens: number;
  readonly elapsed_ms: number;
  readonly out: string;
  readonly failures: string;
  readonly manifest: string;
}

/**
 * Every rollout that was expected is in exactly one class.
 *
 * @throws FleetError `infra/internal` when one is lost or counted twice
 */
export function checkSum(expected: number, counts: ClassCounts): void {
  const sum = sumOf(counts);
  if (sum === expected) return;
  const classes = RESULT_CLASSES.map((name) => `${name} ${counts[name]}`).join(' + ');
  throw new FleetError('infra/internal', `${expected} rollouts were expected, and ${classes} = ${sum}`);
}

const MEANING: Readonly<Record<ResultClass, string>> = {
  ok: 'answered',
  incomplete: 'a limit ended it',
  failed: 'the agent failed',
  infra: 'not scored',
  cancelled: 'not scored',
};

/** For people; without colours. */
export function summaryText(summary: SweepSummary): string {
  const table = new Table({
    head: ['class', 'rollouts', 'codes', ''],
    colAligns: ['left', 'right', 'left', 'left'],
    style: { head: [], border: [], compact: true },
  });
  for (const name of RESULT_CLASSES)
    table.push([name, String(summary.counts[name]), codesOf(summary, name), MEANING[name]]);
  table.push(['expected', String(summary.expected), '', '']);
  return [
    table.toString(),
    `sweep ${summary.sweep_id}: ${summary.attempts} attempts (${summary.retries} of them again), ${short(summary.tokens)} tokens, ${duration(summary.elapsed_ms)}`,
    ...(summary.resumed > 0 ? [`${summary.resumed} rollouts were done before`] : []),
    ...(summary.refused > 0 ? [`${summary.refused} rows were refused`] : []),
    `results: ${summary.out}`,
    ...(summary.counts.infra + summary.counts.cancelled > 0 ? [`failures: ${summary.failures}`] : []),
  ].join('\n');
}

function codesOf(summary: SweepSummary, name: ResultClass): string {
  return Object.entries(summary.codes)
    .filter(([code, count]) => code.startsWith(`${name}/`) && code !== 'ok/done' && count > 0)
    .map(([code, count]) => `${code.slice(name.length + 1)} ${count}`)
    .join(', ');
}
