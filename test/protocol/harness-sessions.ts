import { setTimeout as sleep } from 'node:timers/promises';
import { bodyDigest, sessionKey, type SubmitCommand } from '@hermes-fleet/shared';
import {
  type ActivatePayload,
  addressOf,
  borrowedName,
  chance,
  type HarnessFleet,
  pick,
  SEED_QUEUE,
  type SeedPayload,
} from './harness-fleet.ts';

/** What is owed for one command, and what came. */
export interface Owed {
  isAccepted: boolean;
  isCancelled: boolean;
  readonly results: { readonly class: string; readonly code: string }[];
}

const SKIPPED_ADDS = 0.08;

/** The clients of a fault run: random sessions, and a ledger of what each was promised. */
export class Sessions {
  /** By `<session id>|<command id>`; closes of one session are one. */
  readonly owed = new Map<string, Owed>();
  readonly borrowed: string[] = [];
  skippedAdds = 0;
  refused = 0;
  readonly #fleet: HarnessFleet;
  readonly #spreadMs: number;
  readonly #sessionTtlMs: number;
  /** Share of activations that take seconds. */
  readonly #slow: number;

  constructor(
    fleet: HarnessFleet,
    options: { readonly spreadMs: number; readonly sessionTtlMs: number; readonly slow: number },
  ) {
    this.#fleet = fleet;
    this.#spreadMs = options.spreadMs;
    this.#sessionTtlMs = options.sessionTtlMs;
    this.#slow = options.slow;
  }

  entry(sessionId: string, commandId: string): Owed {
    const id = `${sessionId}|${commandId.startsWith('close') ? 'close' : commandId}`;
    let owed = this.owed.get(id);
    if (owed === undefined) {
      owed = { isAccepted: false, isCancelled: false, results: [] };
      this.owed.set(id, owed);
    }
    return owed;
  }
  waiting(): string[] {
    return [...this.owed].filter(([, { isAccepted, results }]) => isAccepted && results.length === 0).map(([id]) => id);
  }

  async run(index: number): Promise<void> {
    await sleep(Math.random() * this.#spreadMs);
    const sessionId = `s${index}`;
    const seed = await this.#seed(sessionId);
    const activations = Array.from({ length: 1 + Math.floor(Math.random() * 3) }, (_, at) =>
      this.#activation(`a${at}`),
    );
    const disturbances = this.#disturb(sessionId, seed, activations);
    if (chance(0.03)) await this.#submit(sessionId, [close('now')]);
    const shape = Math.random();
    if (shape < 0.45) await this.#submit(sessionId, [seed, ...activations, close('idle')]);
    else if (shape < 0.55) await this.#submit(sessionId, [seed, ...activations]);
    else await this.#stepwise(sessionId, seed, activations);
    await Promise.all(disturbances);
  }

  async #stepwise(sessionId: string, seed: SubmitCommand, activations: readonly SubmitCommand[]): Promise<void> {
    await this.#submit(sessionId, [seed]);
    for (const activation of activations) {
      if (chance(0.5)) await sleep(Math.random() * 300);
      await this.#submit(sessionId, [activation]);
    }
    if (!chance(0.8)) return;
    await sleep(Math.random() * 500);
    await this.#submit(sessionId, [close(chance(0.5) ? 'idle' : 'now')]);
  }

  /** Cancels, closes, repeats, other bodies and other identities, at any moment. */
  #disturb(sessionId: string, seed: SubmitCommand, activations: readonly SubmitCommand[]): Promise<unknown>[] {
    const first = activations.slice(0, 1).map((activation) => ({ ...activation, digest: bodyDigest('other') }));
    const options: readonly [number, number, () => Promise<void>][] = [
      [0.15, 1500, async () => await this.#cancel(sessionId, pick(['seed', 'a0', 'a1']) ?? 'seed')],
      [0.12, 1500, async () => await this.#submit(sessionId, [close('now')])],
      [0.1, 300, async () => await this.#submit(sessionId, [seed, ...activations])],
      [0.05, 500, async () => await this.#submit(sessionId, first)],
      [0.05, 800, async () => await this.#submit(sessionId, [close('idle')], 'wrong')],
    ];
    return options
      .filter(([probability]) => chance(probability))
      .map(async ([, ms, act]) => {
        await sleep(Math.random() * ms);
        await act();
      });
  }

  async #seed(sessionId: string): Promise<SubmitCommand> {
    const key = sessionKey(sessionId);
    const isBorrowed = chance(0.3);
    if (isBorrowed) {
      this.borrowed.push(borrowedName(key));
      await this.#fleet.world.create(borrowedName(key), key, 'nobody');
    }
    const payload: SeedPayload = { isBorrowed, ms: chance(0.05) ? 3000 : 60 };
    return command('seed', 'seed', payload);
  }

  #activation(commandId: string): SubmitCommand {
    const payload: ActivatePayload = {
      ms: chance(this.#slow) ? 1000 + Math.random() * 6000 : Math.random() * 250,
      acts: 1 + Math.floor(Math.random() * 5),
      tools: pick([0, 0.3, 1]) ?? 1,
    };
    return command('activate', commandId, payload);
  }

  async #submit(sessionId: string, commands: readonly SubmitCommand[], identity = 'right'): Promise<void> {
    const key = sessionKey(sessionId);
    const answer = await this.#fleet.scripts.submit(
      addressOf(key),
      {
        sessionId,
        identity,
        parkedLimit: 1000,
        unreadLimit: 1e6,
        waitTtlMs: 60_000,
        sessionTtlMs: this.#sessionTtlMs,
        seedQueue: SEED_QUEUE,
        sweepId: undefined,
      },
      commands,
    );
    if ('moved' in answer) throw new Error(`session ${sessionId} answers elsewhere`);
    for (const [index, { commandId }] of commands.entries()) {
      if (answer.answers[index]?.status === 'refused') this.refused++;
      else this.entry(sessionId, commandId).isAccepted = true;
    }
    if (chance(SKIPPED_ADDS)) this.skippedAdds++;
    else await this.#fleet.add(answer.job, key);
    // A job delivered twice, which BullMQ does when a lock is lost.
    if (answer.job !== undefined && chance(0.03))
      await this.#fleet.add({ ...answer.job, jobId: `${answer.job.jobId}.twice` }, key);
  }

  async #cancel(sessionId: string, commandId: string): Promise<void> {
    const key = sessionKey(sessionId);
    const answer = await this.#fleet.scripts.cancel(addressOf(key), commandId, 'by_caller');
    if ('moved' in answer || answer.status !== 'accepted') return;
    this.entry(sessionId, commandId).isCancelled = true;
    if (!chance(SKIPPED_ADDS)) await this.#fleet.add(answer.job, key);
  }
}

function command(kind: 'seed' | 'activate', commandId: string, payload: object): SubmitCommand {
  const json = JSON.stringify(payload);
  return { kind, commandId, digest: bodyDigest(json), payload: json };
}
function close(when: 'now' | 'idle'): SubmitCommand {
  return { kind: 'close', commandId: 'close', digest: '', payload: '', when };
}
