import { createHash } from 'node:crypto';
import type { Job, ResultClass } from '@hermes-fleet/shared';
import { type Budget, type Configuration, NO_FAULTS } from './configurations.ts';
import { EMPTY, type Engine, type Published, type Stored, pairs } from './stored.ts';

/** A job in BullMQ: waiting, or held by the processor call with that number. */
interface HeldJob {
  readonly name: string;
  readonly commandId: string;
  h: number | 'waiting';
}

/** Where a processor call is; the order is that of the worker's processor. */
type Step =
  | 'admit'
  | 'begin'
  | 'execute'
  | 'act'
  | 'tool'
  | 'outcome'
  | 'finish'
  | 'release'
  | 'release and wait'
  | 'add';

/** One call of the worker's processor. It may run several commands, one after another. */
export interface Run {
  rid: number;
  jobId: string;
  command: string;
  kind: string;
  nonce: string;
  step: Step;
  /** Own lease of a seed. */
  member?: string;
  engine?: string;
  fence?: string;
  /** Lease, and so sandbox, of the session. */
  lease?: string;
  result?: ResultClass | 'again';
  released?: boolean;
  sandboxLost?: boolean;
  /** Nonce with which finish was asked for the next command. */
  nextNonce?: string;
  job?: Job | undefined;
}

interface Sandbox {
  /** Highest epoch it has seen; it refuses lower ones. */
  epoch: number;
  /** Epoch of the runner in it; 0: none. */
  running: number;
  readonly engine: string;
}

export interface State {
  stored: Stored;
  jobs: Record<string, HeldJob>;
  runs: Run[];
  sandboxes: Record<string, Sandbox>;
  budget: { -readonly [Fault in keyof Budget]: number };
  /** Steps of the plan that were submitted. */
  submitted: number;
  /** Jobs that a producer got and has not added yet. */
  pending: Job[];
  cancelled: Record<string, true>;
  published: Published[];
  lastRun: number;
  engineDown: boolean;
  expired: boolean;
  failedOver: boolean;
  /** Something that must never happen, seen in a step rather than in a state. */
  wrong: string;
  /** Fence under which the tool acts of an activation were made. */
  acts: Record<string, string>;
  snapshot?: { readonly stored: Stored; readonly jobs: Record<string, HeldJob> };
}

export const initialState = (configuration: Configuration): State => ({
  stored: EMPTY,
  jobs: {},
  runs: [],
  sandboxes: {},
  budget: { ...NO_FAULTS, ...configuration.budget },
  submitted: 0,
  pending: [],
  cancelled: {},
  published: [],
  lastRun: 0,
  engineDown: false,
  expired: false,
  failedOver: false,
  wrong: '',
  acts: {},
});

function copies<T extends object>(of: Record<string, T>): Record<string, T> {
  return Object.fromEntries(Object.entries(of).map(([name, value]) => [name, { ...value }]));
}
export const copyJobs = (state: State): State['jobs'] => copies(state.jobs);

/** `stored` is replaced whole, never changed in place, so it is shared. */
export const clone = (state: State): State => ({
  ...state,
  jobs: copies(state.jobs),
  runs: state.runs.map((run) => ({ ...run })),
  sandboxes: copies(state.sandboxes),
  budget: { ...state.budget },
  pending: [...state.pending],
  cancelled: { ...state.cancelled },
  published: [...state.published],
  acts: { ...state.acts },
});

const unnumbered = (run: Run): string => JSON.stringify(run).replaceAll(/n\d+|"rid":\d+/g, '');

/**
 * Digest by which equal states are found. Runs are interchangeable, so their numbers are renamed in order of
 * appearance: symmetric states are one.
 */
export function stateKey(state: State): string {
  const { runs, lastRun: _, ...others } = state;
  const ordered = runs
    .map((run) => ({ run, by: unnumbered(run) }))
    .toSorted((left, right) => (left.by < right.by ? -1 : 1))
    .map(({ run }) => run);
  const names = new Map<string, number>();
  const json = JSON.stringify([ordered, others]).replaceAll(
    /\bn(\d+)\b|"rid":(\d+)|"h":(\d+)/g,
    (token: string, nonce?: string, rid?: string, holder?: string) => {
      const number = nonce ?? rid ?? holder ?? '';
      const name = names.get(number) ?? names.size;
      names.set(number, name);
      return token.replace(/\d+/, `#${name}`);
    },
  );
  return createHash('sha1').update(json).digest('base64');
}

export function field(state: State, name: string): string | undefined {
  const { record } = state.stored;
  for (let index = 0; index < record.length; index += 2) if (record[index] === name) return record[index + 1];
  return undefined;
}

interface Command {
  readonly letter: string;
  readonly number: number;
  readonly kind: string;
}

const parsed = new WeakMap<Stored, ReadonlyMap<string, Command>>();

export function commands({ stored }: State): ReadonlyMap<string, Command> {
  const known = parsed.get(stored);
  if (known !== undefined) return known;
  const found = new Map<string, Command>();
  for (const [name, value] of pairs(stored.record)) {
    if (!name.startsWith('c:')) continue;
    const [letter = '', number, kind = ''] = value.split(':');
    found.set(name.slice(2), { letter, number: Number(number), kind });
  }
  parsed.set(stored, found);
  return found;
}
export const isOpen = (command: Command): boolean => 'pqb'.includes(command.letter);

export const leases = (state: State, engine: Engine): Map<string, number> =>
  new Map([...pairs(state.stored.leases[engine])].map(([member, expiry]) => [member, Number(expiry)]));

export const epochOf = (fence: string | undefined): number => Number(fence?.split('.')[0] ?? 0);
export const nonceOf = (fence: string | undefined): string | undefined => fence?.split('.')[1];

const OWNING: readonly Step[] = ['execute', 'act', 'tool', 'outcome', 'finish'];
/** Whether a run believes that it owns its command. */
export const believesToOwn = (run: Run): boolean => OWNING.includes(run.step);

/** The run that owns the running command, also one that does not know it yet: the reply that tells it so was lost. */
export function livingOwner(state: State): Run | undefined {
  const fence = field(state, 'fe');
  if (fence === undefined) return undefined;
  const nonce = nonceOf(fence);
  const running = field(state, 'run');
  return state.runs.find(
    (run) =>
      (believesToOwn(run) && run.fence === fence && run.command === running) ||
      (run.step === 'finish' && run.nextNonce === nonce) ||
      (run.step === 'begin' && run.nonce === nonce),
  );
}

/** What `queue.add` does: nothing where the id exists. */
export function addJob(state: State, job: Job | undefined): void {
  if (job === undefined || state.jobs[job.jobId] !== undefined) return;
  state.jobs[job.jobId] = { name: job.name, commandId: job.commandId, h: 'waiting' };
}
