import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import Table from 'cli-table3';
import { ROOT } from '../setup/processes.ts';

/** One line of design.md §12, as measured in this run. */
export interface Row {
  readonly what: string;
  readonly baseline: string;
  /** Raw samples of ours and of the baseline, in `unit`. */
  readonly samples: readonly number[];
  readonly baselineSamples: readonly number[];
  readonly unit: string;
  /** The figure that is judged, and how. */
  readonly figure: number;
  readonly target: string;
  readonly isMet: boolean;
  readonly note?: string;
}

export function quantile(samples: readonly number[], share: number): number {
  const sorted = samples.toSorted((one, other) => one - other);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}
export const median = (samples: readonly number[]): number => quantile(samples, 0.5);

/** Ratio of medians; at most (or, with `atLeast`, at least) `bound`. */
export function ratioRow(row: Omit<Row, 'figure' | 'target' | 'isMet'>, bound: number, atLeast = false): Row {
  const figure = median(row.samples) / median(row.baselineSamples);
  return {
    ...row,
    figure,
    target: `${atLeast ? '≥' : '≤'} ${bound} ×`,
    isMet: atLeast ? figure >= bound : figure <= bound,
  };
}

export function limitRow(row: Omit<Row, 'target' | 'isMet' | 'baseline' | 'baselineSamples'>, limit: number): Row {
  return { ...row, baseline: '', baselineSamples: [], target: `≤ ${limit} ${row.unit}`, isMet: row.figure <= limit };
}

const shown = (value: number): string =>
  Number.isNaN(value) ? '–' : value >= 100 ? value.toFixed(0) : value.toPrecision(3);

export function report(rows: readonly Row[]): void {
  const table = new Table({
    head: ['what', 'ours (median)', 'baseline', 'figure', 'must reach', ''],
    style: { head: [], border: [] },
    wordWrap: true,
    colWidths: [44, 16, 26, 10, 12, 8],
  });
  for (const row of rows) {
    const base =
      row.baselineSamples.length === 0 ? '' : `${shown(median(row.baselineSamples))} ${row.unit}: ${row.baseline}`;
    table.push([
      row.what + (row.note === undefined ? '' : ` (${row.note})`),
      `${shown(median(row.samples))} ${row.unit}`,
      base,
      shown(row.figure),
      row.target,
      row.isMet ? 'met' : 'NOT MET',
    ]);
  }
  console.log(table.toString());
  const file = path.join(ROOT, '.cache/bench.json');
  mkdirSync(path.dirname(file), { recursive: true });
  writeFileSync(file, JSON.stringify({ at: new Date().toISOString(), node: process.version, rows }, null, 1));
  console.log('raw samples: .cache/bench.json');
}

export async function timed(work: () => Promise<unknown>): Promise<number> {
  const begun = performance.now();
  await work();
  return performance.now() - begun;
}
