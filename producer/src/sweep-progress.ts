import type { ResultClass } from '@hermes-fleet/shared';

export type ClassCounts = Readonly<Record<ResultClass, number>>;

/** Where a sweep stands. */
export interface SweepState {
  /** Rollouts of the sweep: rows times repeats. */
  readonly expected: number;
  /** Rollouts that are terminal, those of earlier processes included. */
  readonly counts: ClassCounts;
  /** Terminal before this process began. */
  readonly resumed: number;
  readonly running: number;
  /** Attempts beyond the first, in this process. */
  readonly retries: number;
  readonly tokens: number;
  readonly elapsedMs: number;
}

export const noCounts = (): Record<ResultClass, number> => ({
  ok: 0,
  incomplete: 0,
  failed: 0,
  infra: 0,
  cancelled: 0,
});

export const sumOf = (counts: ClassCounts): number => Object.values(counts).reduce((sum, count) => sum + count, 0);

const BAR_CELLS = 24;

/** Whole percents of what is terminal: 100 only when nothing is left. */
export function percentOf(state: SweepState): number {
  const done = sumOf(state.counts);
  if (done >= state.expected) return 100;
  return Math.min(99, Math.floor((100 * done) / state.expected));
}

/** What a terminal shows of a sweep. */
export function progressLines(state: SweepState): string[] {
  const done = sumOf(state.counts);
  const percent = percentOf(state);
  const filled = Math.floor((BAR_CELLS * percent) / 100);
  return [
    `${'█'.repeat(filled)}${'░'.repeat(BAR_CELLS - filled)} ${percent} %  ${done}/${state.expected} rollouts, ${state.running} running`,
    `${classesOf(state)}${state.retries > 0 ? `  (${plural(state.retries, 'retry', 'retries')})` : ''}`,
    `${paceOf(state)}  ${short(state.tokens)} tokens  ${duration(state.elapsedMs)}`,
  ];
}

/** The same in one line, for logs. */
export function progressLine(state: SweepState): string {
  return `${sumOf(state.counts)}/${state.expected} (${percentOf(state)} %)  ${classesOf(state)}  running ${state.running}  ${paceOf(state)}  ${short(state.tokens)} tokens`;
}

function classesOf({ counts }: SweepState): string {
  return Object.entries(counts)
    .map(([name, count]) => `${name} ${count}`)
    .join('  ');
}

const MINUTE_MS = 60_000;

/** Rate and time left, from what this process has done. */
function paceOf(state: SweepState): string {
  const own = sumOf(state.counts) - state.resumed;
  if (own <= 0 || state.elapsedMs <= 0) return 'no rate yet';
  const perMinute = (own * MINUTE_MS) / state.elapsedMs;
  const left = ((state.expected - state.resumed - own) * state.elapsedMs) / own;
  return `${perMinute >= 10 ? perMinute.toFixed(0) : perMinute.toFixed(1)}/min  ETA ${duration(left)}`;
}

export function duration(ms: number): string {
  const seconds = Math.round(ms / 1000);
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  if (hours > 0) return `${hours}h${String(minutes).padStart(2, '0')}m`;
  return minutes > 0 ? `${minutes}m${String(rest).padStart(2, '0')}s` : `${rest}s`;
}

export function short(count: number): string {
  if (count < 1000) return String(count);
  const [unit, name] = count < 999_500 ? [1000, 'k'] : count < 999_500_000 ? [1e6, 'M'] : [1e9, 'G'];
  const value = count / unit;
  return `${value < 9.95 ? value.toFixed(1) : value.toFixed(0)}${name}`;
}

const plural = (count: number, one: string, more: string): string => `${count} ${count === 1 ? one : more}`;
