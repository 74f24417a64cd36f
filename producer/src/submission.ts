import { createHash } from 'node:crypto';
import {
  ActivationId,
  type Address,
  type Dispatcher,
  FleetError,
  type Identity,
  isBorrowed,
  type Keys,
  newEngineQueue,
  newQueue,
  type Scripts,
  type Seed,
  sessionKey,
  type SubmitAnswer,
  type SubmitCommand,
} from '@hermes-fleet/shared';
import type { Redis } from 'ioredis';
import { closeCommand } from './plan.ts';

const DAY_MS = 86_400_000;
/** Ten years: any larger time limit is the same, and stays a time that Redis and the engines can add up. */
const LONGEST_MS = 3650 * DAY_MS;

export interface SubmissionOptions {
  readonly parkedLimit?: number;
  readonly unreadLimit?: number;
  readonly waitTtlMs?: number;
}

/** What came of a cancel. */
export interface Cancelled {
  /** Whether what was named is, or will be, cancelled. */
  readonly accepted: boolean;
  /** The command is not there yet: it will be cancelled when it comes. */
  readonly isAhead?: boolean;
  /** Of a sweep: how many sessions it had so far. */
  readonly sessions?: number;
}

export interface Submitted {
  readonly commandId: string;
  /** `joined`: the identical command was there already. */
  readonly status: 'accepted' | 'joined';
}

/** Hands commands and cancels to the scripts, and their jobs to BullMQ. */
export class Submission {
  readonly #redis: Redis;
  readonly #scripts: Scripts;
  readonly #keys: Keys;
  readonly #dispatcher: Dispatcher;
  readonly #options: SubmissionOptions;
  readonly #replyTo = new Map<string, string>();

  constructor(redis: Redis, scripts: Scripts, dispatcher: Dispatcher, options: SubmissionOptions) {
    this.#redis = redis;
    this.#scripts = scripts;
    this.#keys = scripts.keys;
    this.#dispatcher = dispatcher;
    this.#options = options;
  }

  async submit(
    sessionId: string,
    seed: Seed | undefined,
    identity: Identity | undefined,
    commands: readonly SubmitCommand[],
  ): Promise<Submitted[]> {
    const key = sessionKey(sessionId);
    const sweepId = seed?.identity?.sweep_id;
    if (sweepId !== undefined) {
      const members = this.#keys.sweepMembers(sweepId);
      await this.#redis
        .pipeline()
        .sadd(members, sessionId)
        .expire(members, 7 * 86_400)
        .exec();
    }
    let replyTo = seed?.reply_to ?? (await this.address(sessionId)).replyTo;
    for (;;) {
      const at = { key, replyTo };
      const answer = await this.#scripts.submit(
        at,
        {
          sessionId,
          identity: identityDigest(identity),
          parkedLimit: this.#options.parkedLimit ?? 64,
          unreadLimit: this.#options.unreadLimit ?? 100_000,
          waitTtlMs: this.#options.waitTtlMs ?? 7 * DAY_MS,
          sessionTtlMs: Math.min(LONGEST_MS, Math.round((seed?.timeouts.session_ttl_s ?? 86_400) * 1000)),
          seedQueue: seed === undefined ? '' : queueOf(seed),
          sweepId,
        },
        commands,
      );
      if ('moved' in answer) {
        replyTo = answer.moved;
        continue;
      }
      await this.#dispatcher.add(answer.job, key, replyTo);
      this.#replyTo.set(key, replyTo);
      return await this.#submitted(sessionId, key, commands, answer.answers);
    }
  }

  async #submitted(
    sessionId: string,
    key: string,
    commands: readonly SubmitCommand[],
    answers: readonly SubmitAnswer[],
  ): Promise<Submitted[]> {
    const submitted: Submitted[] = [];
    for (const [index, command] of commands.entries()) {
      const answer = answers[index];
      if (answer === undefined) throw new FleetError('infra/internal', 'a command was not answered');
      // A plan that closes its own session, said again, joins; a seed alone after somebody's close does not.
      const isLate = answer.status === 'late' && !commands.some(({ kind }) => kind === 'close');
      if (answer.status === 'refused' || isLate) throw refusal(sessionId, command, isLate ? 'late' : answer.detail);
      // A close that failed is followed by another one with a number of its own.
      const commandId =
        command.kind === 'close'
          ? ((await this.#redis.hget(this.#keys.record(key), 'cx')) ?? 'close')
          : command.commandId;
      submitted.push({ commandId, status: answer.status === 'accepted' ? 'accepted' : 'joined' });
    }
    return submitted;
  }

  /** Name of the model that a session was seeded with. @throws FleetError `refused/session_unknown`, `refused/session_closed` */
  async modelOf(sessionId: string): Promise<string> {
    const record = this.#keys.record(sessionKey(sessionId));
    const [state, payload] = await Promise.all([
      this.#redis.hget(record, 'st'),
      this.#redis.hget(this.#keys.payloads(sessionKey(sessionId)), 'seed'),
    ]);
    if (payload !== null) return (JSON.parse(payload) as Seed).model.name;
    const isClosed = state === 'z';
    throw new FleetError(
      isClosed ? 'refused/session_closed' : 'refused/session_unknown',
      `session ${JSON.stringify(sessionId)} ${isClosed ? 'is closed' : 'was never seeded'}`,
    );
  }

  async cancelCommand(sessionId: string, commandId: string): Promise<Cancelled> {
    if (commandId !== 'seed' && !ActivationId.safeParse(commandId).success)
      throw new FleetError('refused/invalid', `${JSON.stringify(commandId)} is no id of a command`);
    let at = await this.address(sessionId);
    for (;;) {
      const answer = await this.#scripts.cancel(at, commandId, 'by_caller');
      if ('moved' in answer) {
        at = { ...at, replyTo: answer.moved };
        continue;
      }
      if (answer.status === 'refused') throw new FleetError('refused/invalid', 'a close cannot be cancelled');
      if (answer.status === 'accepted') await this.#dispatcher.add(answer.job, at.key, at.replyTo);
      const accepted = answer.status === 'accepted' || answer.resultClass === 'cancelled';
      const isAhead = answer.status === 'accepted' && answer.how === 'tombstone';
      return { accepted, ...(isAhead ? { isAhead } : {}) };
    }
  }

  /**
   * Of every round of a sweep: one that is resumed after a cancel goes on under the name with the next number. The tombstone
   * first: a seed that is on its way must not slip through between.
   */
  async cancelSweep(sweepId: string): Promise<Cancelled> {
    let sessions = 0;
    for (let round = 1; ; round++) {
      const name = round === 1 ? sweepId : `${sweepId}.${round}`;
      const members = await this.#redis.smembers(this.#keys.sweepMembers(name));
      if (round > 1 && members.length === 0) return { accepted: true, sessions };
      await this.#redis.set(this.#keys.sweep(name), '1', 'PX', 7 * DAY_MS);
      for (const sessionId of await this.#redis.smembers(this.#keys.sweepMembers(name))) {
        await this.submit(sessionId, undefined, undefined, [closeCommand('now')]);
        sessions++;
      }
    }
  }

  async address(sessionId: string): Promise<Address> {
    const key = sessionKey(sessionId);
    const known = this.#replyTo.get(key) ?? (await this.#redis.hget(this.#keys.record(key), 'rt')) ?? 'default';
    return { key, replyTo: known };
  }
}

/** Where workers that can do a seed look for it. */
function queueOf({ sandbox }: Seed): string {
  if (!isBorrowed(sandbox)) return newQueue(sandbox.provider);
  const { provider, descriptor } = sandbox.access.connection;
  return descriptor.engine === undefined ? newQueue(provider) : newEngineQueue(descriptor.engine);
}

/** '' where no rollout is named: then nothing is checked. */
function identityDigest(identity: Identity | undefined): string {
  if (identity?.rollout_id === undefined) return '';
  return createHash('sha256')
    .update(JSON.stringify([identity.rollout_id, identity.attempt]))
    .digest('base64url')
    .slice(0, 22);
}

/** Words of the scripts, as errors. */
function refusal(sessionId: string, command: SubmitCommand, detail: string): FleetError {
  const session = `session ${JSON.stringify(sessionId.length > 80 ? `${sessionId.slice(0, 80)}…` : sessionId)}`;
  switch (detail) {
    case 'conflict':
      return new FleetError(
        'refused/session_conflict',
        command.kind === 'seed'
          ? `${session} was seeded with another body`
          : `${session} has another command ${command.commandId}`,
      );
    case 'identity':
      return new FleetError('refused/session_conflict', `${session} belongs to another rollout or attempt`);
    case 'closed':
    case 'late':
      return new FleetError('refused/session_closed', `${session} is closed`);
    case 'sweep_cancelled':
      return new FleetError('refused/session_closed', `the sweep of ${session} is cancelled`);
    case 'unknown_session':
      return new FleetError('refused/session_unknown', `${session} was never seeded`);
    case 'backpressure':
      return new FleetError('refused/retry_later', 'the results stream has too many unread entries', {
        retryAfterMs: 5_000,
      });
    case 'parked_full':
      return new FleetError('refused/retry_later', `${session} has too many waiting commands`, { retryAfterMs: 1_000 });
    default:
      return new FleetError(
        'refused/invalid',
        `${command.kind} ${command.commandId} was not looked at, because a command before it was refused`,
      );
  }
}
