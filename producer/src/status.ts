import { FleetError, type Keys, sessionKey } from '@hermes-fleet/shared';
import type { Redis } from 'ioredis';

const STATES = { n: 'seeding', r: 'ready', k: 'closing', z: 'closed', f: 'failed', l: 'lost' } as const;
const COMMAND_STATES: Readonly<Record<string, string>> = {
  p: 'parked',
  q: 'waiting',
  b: 'running',
  o: 'ok',
  i: 'incomplete',
  f: 'failed',
  n: 'infra',
  c: 'cancelled',
};

export interface SessionStatus {
  readonly session_id: string;
  readonly state: string;
  /** Commands in order, each with what it is doing or how it ended. */
  readonly commands: readonly { readonly id: string; readonly state: string }[];
  /** Why nothing happens at the moment; null when something does, or nothing is owed. */
  readonly waiting_for: string | null;
  readonly engine: string | null;
  /** Milliseconds since the epoch. */
  readonly deadline: number | null;
}

/** @throws FleetError `refused/session_unknown` */
export async function sessionStatus(redis: Redis, keys: Keys, sessionId: string): Promise<SessionStatus> {
  const record = await redis.hgetall(keys.record(sessionKey(sessionId)));
  const state = record['st'];
  if (state === undefined)
    throw new FleetError('refused/session_unknown', `session ${JSON.stringify(sessionId)} is not known`);
  const commands = Object.entries(record)
    .flatMap(([field, value]) =>
      field.startsWith('c:')
        ? [{ id: field.slice(2), letter: value[0] ?? '', number: Number(value.split(':')[1]) }]
        : [],
    )
    .toSorted((one, other) => one.number - other.number);
  const running = record['run'];
  const current = commands.find(({ id }) => id === running);
  const isActive = state === 'r' && current !== undefined && current.letter === 'b';
  return {
    session_id: sessionId,
    state: isActive ? 'active' : state in STATES ? STATES[state as keyof typeof STATES] : state,
    commands: commands.map(({ id, letter }) => ({ id, state: COMMAND_STATES[letter] ?? letter })),
    waiting_for:
      current === undefined || current.letter !== 'q' ? null : await reasonToWait(redis, keys, record, current.id),
    engine: record['en'] ?? null,
    deadline: record['xp'] === undefined ? null : Number(record['xp']),
  };
}

async function reasonToWait(
  redis: Redis,
  keys: Keys,
  record: Readonly<Record<string, string>>,
  command: string,
): Promise<string> {
  const queue = command === 'seed' ? (record['nq'] ?? '') : (record['q'] ?? 'any');
  const engines = await redis.zcount(keys.engines, Date.now(), '+inf');
  if (engines === 0) return `a worker: none is alive (queue ${queue})`;
  return command === 'seed'
    ? `a worker of queue ${queue} with a free sandbox slot, or its turn`
    : `a worker of its engine (queue ${queue})`;
}
