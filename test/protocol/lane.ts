import { type Keys, Scripts } from '@hermes-fleet/shared';
import type { Redis } from 'ioredis';
import {
  DUMP,
  type Published,
  RESTORE,
  readDump,
  restoreArgument,
  type Stored,
  STORED_KEYS,
  storedKeys,
} from './stored.ts';

type Argument = string | number;
type Reply = readonly [error: Error | null, result: unknown];

interface Queued {
  readonly name: string;
  readonly args: readonly Argument[];
  readonly settle: (reply: Reply) => void;
}
interface Step {
  readonly stored: string;
  readonly commands: readonly Queued[];
  readonly settleDump: (reply: Reply) => void;
}

type Send = (...args: readonly Argument[]) => Promise<unknown>;

/** Times of the contract as the search counts them; see the constants of `stored.ts`. */
const TIMING = { recheckMs: 30_000, receiptMs: 300_000, lapseMs: 15_000, graceMs: 5000 };

/** How many outcomes are remembered; some 2 kB each. */
const KEPT = 100_000;

const WITHOUT_CLOCK = /(redis\.)?call\('TIME'\)/g;

/**
 * One connection on which many independent steps are sent at once: each restores its state, makes its call and reads the
 * state back. Scripts run with a clock that stands still.
 */
export class Lane {
  readonly scripts: Scripts;
  readonly keys: Keys;
  readonly #redis: Redis;
  readonly #storedKeys: string[];
  #queued: Queued[] = [];
  #steps: Step[] = [];
  /** The scripts are functions of what is stored and their arguments, so what they did before need not be asked again. */
  readonly #outcomes = new Map<string, readonly Reply[]>();
  readonly #dumps = new Map<string, ReturnType<typeof readDump>>();

  /** @param edit changes the Lua before it is used: a planted fault */
  constructor(redis: Redis, keys: Keys, edit: (lua: string) => string) {
    this.#redis = redis;
    this.keys = keys;
    this.#storedKeys = storedKeys(keys);
    const senders: Record<string, unknown> = {};
    const define = (name: string, definition: { readonly numberOfKeys: number; readonly lua: string }): void => {
      const lua = edit(definition.lua.replaceAll(WITHOUT_CLOCK, "{ '1000000', '0' }"));
      redis.defineCommand(name, { ...definition, lua });
      senders[name] = async (...args: readonly Argument[]) => await this.#queue(name, args);
    };
    define('search_restore', { numberOfKeys: STORED_KEYS, lua: RESTORE });
    define('search_dump', { numberOfKeys: STORED_KEYS, lua: DUMP });
    // What `Scripts` needs of a connection: it defines its scripts and calls them.
    this.scripts = new Scripts(Object.assign(senders, { defineCommand: define }) as unknown as Redis, keys, TIMING);
  }

  /** Queues a plain command. */
  readonly send: Send = async (name, ...args) => await this.#queue('call', [String(name), ...args]);

  /** Queues one step. `call` must queue its commands before its first await. */
  async step<Answer>(
    stored: Stored,
    call: () => Promise<Answer>,
  ): Promise<{ readonly answer: Answer; readonly stored: Stored; readonly published: readonly Published[] }> {
    this.#queued = [];
    const answering = call();
    const commands = this.#queued;
    const dumping = promised((settleDump) =>
      this.#steps.push({ stored: restoreArgument(stored), commands, settleDump }),
    );
    const [answer, dump] = await Promise.all([answering, dumping]);
    return { answer, ...this.#read(String(dump)) };
  }

  /** Many steps end alike; what was read is never changed, so it is shared. */
  #read(dump: string): ReturnType<typeof readDump> {
    const known = this.#dumps.get(dump);
    if (known !== undefined) return known;
    if (this.#dumps.size > KEPT) this.#dumps.clear();
    const read = readDump(dump);
    this.#dumps.set(dump, read);
    return read;
  }

  /** Sends the steps whose outcome is not known, and settles all. */
  async flush(): Promise<void> {
    if (this.#outcomes.size > KEPT) this.#outcomes.clear();
    const unknown = new Map<string, Step[]>();
    for (const step of this.#steps) {
      const id = step.stored + JSON.stringify(step.commands);
      const outcome = this.#outcomes.get(id);
      if (outcome !== undefined) settle(step, outcome);
      else unknown.set(id, [...(unknown.get(id) ?? []), step]);
    }
    this.#steps = [];
    const pipeline = this.#redis.pipeline();
    const send = (name: string, args: readonly Argument[]): void => {
      const command: unknown = Reflect.get(pipeline, name);
      if (typeof command !== 'function') throw new Error(`a pipeline has no ${name}`);
      Reflect.apply(command, pipeline, args);
    };
    for (const [step] of unknown.values()) {
      if (step === undefined) continue;
      send('search_restore', [...this.#storedKeys, step.stored]);
      for (const { name, args } of step.commands) send(name, args);
      send('search_dump', this.#storedKeys);
    }
    const replies: readonly Reply[] = (await pipeline.exec()) ?? [];
    let at = 0;
    for (const [id, steps] of unknown) {
      const count = (steps[0]?.commands.length ?? 0) + 2;
      const outcome = replies.slice(at, at + count);
      at += count;
      this.#outcomes.set(id, outcome);
      for (const step of steps) settle(step, outcome);
    }
  }

  async clear(): Promise<void> {
    await this.#redis.del(this.#storedKeys);
  }

  async #queue(name: string, args: readonly Argument[]): Promise<unknown> {
    return await promised((settled) => this.#queued.push({ name, args, settle: settled }));
  }
}

async function promised(start: (settled: (reply: Reply) => void) => void): Promise<unknown> {
  return await new Promise((resolve, reject) => {
    start(([error, result]) => {
      if (error === null) resolve(result);
      else reject(error);
    });
  });
}

function settle(step: Step, [restored, ...outcome]: readonly Reply[]): void {
  const failed: Reply = [restored?.[0] ?? new Error('the connection was lost'), undefined];
  for (const [index, command] of step.commands.entries()) command.settle(outcome[index] ?? failed);
  step.settleDump(outcome[step.commands.length] ?? failed);
}
