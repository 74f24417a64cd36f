import {
  type ActivateInput,
  type ActivationBody,
  boundary,
  checkRedis,
  type CloseBody,
  type CloseInput,
  type CommandResult,
  connectRedis,
  DEFAULT_TIMING,
  Dispatcher,
  FleetError,
  Keys,
  type MailboxTiming,
  reasonOf,
  Scripts,
  type SeedBody,
  type SeedInput,
} from '@hermes-fleet/shared';
import type { Redis } from 'ioredis';
import { storedResult } from './bodies.ts';
import { readResults, type ResultEntry, type ResultsOptions } from './results.ts';
import { Session } from './session.ts';
import { type SessionStatus, sessionStatus } from './status.ts';
import { checkedPlan, checkModels, type Plan } from './plan.ts';
import { type Cancelled, Submission, type Submitted } from './submission.ts';
import { StreamWatch } from './waiting.ts';

export interface FleetClientOptions {
  /** redis:// or rediss:// URL of the fleet's Redis. */
  readonly redisUrl: string;
  /** Name of the fleet, as its workers have it. Default `hf`. */
  readonly fleetId?: string;
  /** Accept a Redis that may evict keys. Default false. */
  readonly allowEviction?: boolean;
  /** Commands that may wait in one session. Default 64; above it: `refused/retry_later`. */
  readonly parkedLimit?: number;
  /** Unread entries of a results stream above which new sessions are refused, `refused/retry_later`. Default 100,000. */
  readonly unreadLimit?: number;
  /** How long a seed may wait for a worker before its session expires, in ms. Default 7 days. */
  readonly waitTtlMs?: number;
  /** Largest body of a command, in bytes; above it: `refused/too_large`. Default 64 MiB. */
  readonly maxBodyBytes?: number;
  readonly timing?: MailboxTiming;
  /** Hears connection trouble while it lasts; calls fail or wait as they say. */
  readonly onConnectionError?: (error: Error) => void;
}

export interface WaitOptions {
  /** Ends the wait, and nothing else: the command goes on, and can be waited for again. */
  readonly signal?: AbortSignal;
}

const CONNECT_MS = 8_000;
/** As the workers' FLEET_ID: it becomes a part of keys and labels. */
const FLEET_ID = /^[A-Za-z0-9._-]{1,64}$/;
const COMMAND_MS = 15_000;

/** Submits commands, waits for their results, and reads results streams. One per process is enough. */
export class FleetClient implements AsyncDisposable {
  readonly #redis: Redis;
  readonly #keys: Keys;
  readonly #dispatcher: Dispatcher;
  readonly #options: FleetClientOptions;
  readonly #watches = new Map<string, StreamWatch>();
  readonly #submission: Submission;
  readonly #readers = new Set<Redis>();

  private constructor(options: FleetClientOptions) {
    this.#options = options;
    this.#keys = new Keys(options.fleetId ?? 'hf');
    // Few tries: a producer learns of an outage at once, and decides itself.
    this.#redis = connectRedis(options.redisUrl, (error) => options.onConnectionError?.(error), {
      maxRetriesPerRequest: 2,
      commandTimeout: COMMAND_MS,
    });
    this.#dispatcher = new Dispatcher(this.#keys, this.#redis);
    const scripts = new Scripts(this.#redis, this.#keys, options.timing ?? DEFAULT_TIMING);
    this.#submission = new Submission(this.#redis, scripts, this.#dispatcher, options);
  }

  /** @throws FleetError `refused/config` for a Redis that cannot be used (password, version, eviction), `refused/redis` when it does not answer */
  static async connect(options: FleetClientOptions): Promise<FleetClient> {
    if (options.fleetId !== undefined && !FLEET_ID.test(options.fleetId))
      throw new FleetError('refused/config', 'the fleet id must be 1 to 64 of A-Z, a-z, 0-9, ".", "_" and "-"');
    await checkRedis(options.redisUrl, { deadlineMs: CONNECT_MS, allowEviction: options.allowEviction === true });
    return new FleetClient(options);
  }

  /**
   * Makes a session ready, and waits until it is. The same session id with the same body is the same session.
   *
   * @throws FleetError `refused/invalid`, `refused/grant_unsupported`, `refused/session_conflict`, `refused/session_closed`, `refused/retry_later`, `refused/too_large`, `refused/redis`
   */
  async seed(body: SeedInput, options: WaitOptions = {}): Promise<CommandResult<SeedBody>> {
    await this.submit({ seed: body });
    return (await this.wait(body.session_id, 'seed', options)) as CommandResult<SeedBody>;
  }

  /**
   * Runs the agent once, and waits for the end. Repeating the identical call joins or replays that activation.
   *
   * @throws FleetError as {@link FleetClient.seed}, and `refused/session_unknown`
   */
  async activate(body: ActivateInput, options: WaitOptions = {}): Promise<CommandResult<ActivationBody>> {
    await this.submit({ activations: [body] });
    return (await this.wait(body.session_id, body.activation_id, options)) as CommandResult<ActivationBody>;
  }

  /** Closes a session from every state, unknown ones too, and waits until nothing of it is left. Repeated, it gives the same receipt. */
  async close(body: CloseInput, options: WaitOptions = {}): Promise<CommandResult<CloseBody>> {
    const [submitted] = await this.submit({ close: body });
    return (await this.wait(body.session_id, submitted?.commandId ?? 'close', options)) as CommandResult<CloseBody>;
  }

  /** Seeds a session that closes itself at the end of its scope. @throws FleetError the seed's own failure */
  async open(body: SeedInput, options: WaitOptions = {}): Promise<Session> {
    const seeded = await this.seed(body, options);
    return new Session(this, body.session_id, seeded);
  }

  /**
   * Hands in commands without waiting for them, in one moment; the first refusal is thrown, and what was accepted before it
   * stays. Repeating the call after any error is safe.
   */
  async submit(plan: Plan): Promise<Submitted[]> {
    const { sessionId, seed, identity, commands, models } = checkedPlan(plan, this.#options.maxBodyBytes);
    return await this.#redisCall('the commands could not be handed in', async () => {
      if (models.length > 0) checkModels(models, await this.#submission.modelOf(sessionId));
      return await this.#submission.submit(sessionId, seed, identity, commands);
    });
  }

  /**
   * Waits for the result of a command, whenever it came: it is read from the session's record, and any event only wakes.
   *
   * @throws the signal's reason; FleetError `refused/session_unknown` when there is no such command
   */
  async wait(sessionId: string, commandId: string, options: WaitOptions = {}): Promise<CommandResult> {
    const at = await this.#redisCall(
      'the session could not be read',
      async () => await this.#submission.address(sessionId),
    );
    const watch = this.#watch(at.replyTo);
    return await watch.until(
      sessionId,
      commandId,
      async () => {
        const result = await storedResult(this.#redis, this.#keys, at.key, sessionId, commandId).catch(
          (error: unknown) => this.#waitOut(error),
        );
        if (result === undefined && (await this.#isUnknown(at.key, commandId)))
          throw new FleetError(
            'refused/session_unknown',
            `session ${JSON.stringify(sessionId)} has no command ${commandId}`,
          );
        return result;
      },
      options.signal,
    );
  }

  /**
   * Cancels one command (`accepted`: its result is or will be `cancelled`), a session (its activations, then close), or
   * every session of a sweep. Never rejects because the command has ended meanwhile.
   */
  async cancel(
    what: { readonly sessionId: string; readonly commandId?: string } | { readonly sweepId: string },
  ): Promise<Cancelled> {
    return await this.#redisCall('the cancel could not be handed in', async () => {
      if ('sweepId' in what) return await this.#submission.cancelSweep(what.sweepId);
      if (what.commandId === undefined) {
        await this.submit({ close: { session_id: what.sessionId } });
        return { accepted: true };
      }
      return await this.#submission.cancelCommand(what.sessionId, what.commandId);
    });
  }

  /** Every result of a stream, once per group, until the signal is aborted. */
  async *results(options: ResultsOptions): AsyncGenerator<ResultEntry> {
    const reader = connectRedis(this.#options.redisUrl, (error) => this.#options.onConnectionError?.(error));
    this.#readers.add(reader);
    const stop = (): void => reader.disconnect();
    options.signal?.addEventListener('abort', stop, { once: true });
    try {
      yield* readResults(reader, this.#redis, this.#keys, options);
    } finally {
      options.signal?.removeEventListener('abort', stop);
      this.#readers.delete(reader);
      reader.disconnect();
    }
  }

  /** Where a session stands, and why it waits. @throws FleetError `refused/session_unknown` */
  async status(sessionId: string): Promise<SessionStatus> {
    return await this.#redisCall(
      'the session could not be read',
      async () => await sessionStatus(this.#redis, this.#keys, sessionId),
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const watch of this.#watches.values()) watch.close();
    for (const reader of this.#readers) reader.disconnect();
    await this.#dispatcher.close().catch(() => undefined);
    this.#redis.disconnect();
  }

  async #isUnknown(key: string, commandId: string): Promise<boolean> {
    try {
      return (await this.#redis.hget(this.#keys.record(key), `c:${commandId}`)) === null;
    } catch {
      return false;
    }
  }

  /** A waiter outlives an outage; it looks again when it is woken, or after a while. */
  #waitOut(error: unknown): undefined {
    if (error instanceof FleetError) throw error;
    this.#options.onConnectionError?.(error instanceof Error ? error : new Error(String(error)));
    return undefined;
  }

  #watch(replyTo: string): StreamWatch {
    let watch = this.#watches.get(replyTo);
    if (watch === undefined) {
      watch = new StreamWatch(
        connectRedis(this.#options.redisUrl, (error) => this.#options.onConnectionError?.(error)),
        this.#keys.results(replyTo),
      );
      this.#watches.set(replyTo, watch);
    }
    return watch;
  }

  async #redisCall<T>(what: string, call: () => Promise<T>): Promise<T> {
    return await boundary('refused/redis', what, call).catch((error: unknown) => {
      if (error instanceof FleetError && error.code === 'refused/redis')
        throw new FleetError('refused/redis', `${what} (${reasonOf(error.cause)})`, { cause: error.cause });
      throw error;
    });
  }
}
