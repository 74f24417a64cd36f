import { createHash } from 'node:crypto';
import { type Address, FleetError, patiently, type Scripts } from '@hermes-fleet/shared';
import { type Cancellation, cancelledError, reasonOfAbort } from '../cancellation.ts';

export type ActKind = 'model' | 'tool' | 'mcp';

export interface JournalOptions {
  readonly scripts: Scripts;
  readonly at: Address;
  readonly commandId: string;
  readonly number: string;
  readonly fence: string;
  /** Deadline of the session, ms since the epoch. */
  readonly deadline: number;
  readonly cancellation: Cancellation;
  /** A permission older than this is asked for again: its giver may have replaced us meanwhile. */
  readonly permissionMs: number;
  /** How long the journal outlives the session's deadline. */
  readonly keepMs: number;
}

/** Hash under which a text is kept once per session. */
export function contentHash(text: string): string {
  return createHash('sha256').update(text).digest('base64url').slice(0, 27);
}

/**
 * The record of one activation, written before and after every act that reaches the world. It is what results are built
 * from, and what survives a killed worker. An act may begin only after `begin` has returned.
 */
export class Journal {
  readonly #options: JournalOptions;
  readonly #stored = new Set<string>();
  #acts = 0;

  constructor(options: JournalOptions) {
    this.#options = options;
  }

  /** Id for a new act, unique within the fence. */
  nextAct(): string {
    return String(++this.#acts);
  }

  /**
   * Writes the intent of an act; waits while Redis is away. After it the act may begin at once, and only then.
   *
   * @throws FleetError the reason of the run's signal: fenced or cancelled meanwhile
   */
  async begin(kind: ActKind, act: string, data: object): Promise<void> {
    const { cancellation, permissionMs } = this.#options;
    const text = JSON.stringify(data);
    for (;;) {
      cancellation.signal.throwIfAborted();
      const asked = performance.now();
      await this.#append('intent', kind, act, text);
      if (cancellation.signal.aborted) throw reasonOfAbort(cancellation.signal);
      if (performance.now() - asked <= permissionMs) return;
    }
  }

  /** Writes what came of an act. An outcome is kept even when the run was cancelled meanwhile. */
  async end(kind: ActKind, act: string, data: object): Promise<void> {
    await this.#append('outcome', kind, act, JSON.stringify(data));
  }

  /** Writes something that happened in the runner: no act, nothing to permit. */
  async event(data: object): Promise<void> {
    await this.#append('outcome', 'model', `e${this.nextAct()}`, JSON.stringify({ event: data }));
  }

  /** Keeps texts once per session, and returns their hashes. Must be done before the entry that names them. */
  async store(texts: readonly string[]): Promise<string[]> {
    const { scripts, at, deadline, keepMs } = this.#options;
    const hashes = texts.map(contentHash);
    const fresh = new Map<string, string>();
    for (const [index, hash] of hashes.entries()) {
      const text = texts[index];
      if (text !== undefined && !this.#stored.has(hash)) fresh.set(hash, text);
    }
    if (fresh.size > 0) {
      const key = scripts.keys.messages(at.key);
      await patiently(async () => {
        // A full Redis refuses inside a pipeline; the first refusal is the call's.
        const replies = await scripts.redis
          .pipeline()
          .hset(key, Object.fromEntries(fresh))
          .pexpireat(key, deadline + keepMs)
          .exec();
        for (const [error] of replies ?? []) if (error !== null) throw error;
      });
      for (const hash of fresh.keys()) this.#stored.add(hash);
    }
    return hashes;
  }

  async #append(phase: 'intent' | 'outcome', kind: ActKind, act: string, data: string): Promise<void> {
    const { scripts, at, commandId, number, fence, keepMs, cancellation } = this.#options;
    const answer = await scripts.append(at, commandId, number, fence, { phase, kind, act, data }, keepMs);
    if (answer.status === 'fenced')
      cancellation.abort(new FleetError('internal/fenced', 'another run owns this activation'));
    else if (answer.status === 'cancelled') cancellation.abort(cancelledError(answer.code));
  }
}

/** One act as it was recorded; without an outcome it is not known whether it happened. */
export interface RecordedAct {
  readonly fence: string;
  readonly kind: ActKind;
  readonly act: string;
  /** Milliseconds since the epoch, by Redis' clock. */
  readonly begunAt: number;
  readonly endedAt: number | undefined;
  readonly intent: Readonly<Record<string, unknown>>;
  readonly outcome: Readonly<Record<string, unknown>> | undefined;
}

export interface RecordedEvent {
  readonly fence: string;
  readonly at: number;
  readonly event: Readonly<Record<string, unknown>>;
}

export interface JournalRecord {
  readonly acts: readonly RecordedAct[];
  readonly events: readonly RecordedEvent[];
  /** Texts by hash; one that is missing was lost. */
  readonly texts: ReadonlyMap<string, string>;
}

const READ_COUNT = 1000;

type MutableAct = { -readonly [Key in keyof RecordedAct]: RecordedAct[Key] };

/** Reads a journal whole. A resent append may stand there twice: the first entry per fence, act and phase counts. */
export async function readJournal(scripts: Scripts, key: string, number: string): Promise<JournalRecord> {
  const reading = new Reading();
  for (let from: string | undefined = '-'; from !== undefined;) {
    const entries: [string, string[]][] = await scripts.redis.xrange(
      scripts.keys.journal(key, number),
      from,
      '+',
      'COUNT',
      READ_COUNT,
    );
    for (const [id, fields] of entries) reading.add(Number(id.slice(0, id.indexOf('-'))), fieldsOf(fields));
    const last = entries.at(-1)?.[0];
    from = last === undefined || entries.length < READ_COUNT ? undefined : `(${last}`;
  }
  const acts = [...reading.acts.values()];
  return { acts, events: reading.events, texts: await loadTexts(scripts, key, acts) };
}

/** A journal while it is being read. */
class Reading {
  readonly acts = new Map<string, MutableAct>();
  readonly events: RecordedEvent[] = [];
  readonly #seen = new Set<string>();

  add(
    at: number,
    { f: fence = '', p: phase = '', k: kind = '', a: act = '', d: data = '{}' }: Partial<Record<string, string>>,
  ): void {
    const entry = `${fence}|${act}|${phase}`;
    if (this.#seen.has(entry)) return;
    this.#seen.add(entry);
    const parsed = JSON.parse(data) as Record<string, unknown>;
    const name = `${fence}|${act}`;
    if (act.startsWith('e')) this.events.push({ fence, at, event: (parsed['event'] ?? {}) as Record<string, unknown> });
    else if (phase === 'intent')
      this.acts.set(name, {
        fence,
        kind: kind as ActKind,
        act,
        begunAt: at,
        endedAt: undefined,
        intent: parsed,
        outcome: undefined,
      });
    else {
      const begun = this.acts.get(name);
      if (begun !== undefined) Object.assign(begun, { outcome: parsed, endedAt: at });
    }
  }
}

/** Names of entry fields that hold a hash, or a list of them. */
const HASH_FIELDS = ['messages', 'tools', 'body', 'text', 'tokens', 'params', 'result', 'output'];

async function loadTexts(scripts: Scripts, key: string, acts: readonly RecordedAct[]): Promise<Map<string, string>> {
  const wanted = new Set<string>();
  for (const { intent, outcome } of acts) {
    for (const data of [intent, outcome]) {
      for (const field of HASH_FIELDS) {
        const value = data?.[field];
        for (const hash of Array.isArray(value) ? value : [value]) if (typeof hash === 'string') wanted.add(hash);
      }
    }
  }
  const texts = new Map<string, string>();
  const hashes = [...wanted];
  for (let at = 0; at < hashes.length; at += READ_COUNT) {
    const part = hashes.slice(at, at + READ_COUNT);
    const values = await scripts.redis.hmget(scripts.keys.messages(key), ...part);
    for (const [index, value] of values.entries()) {
      const hash = part[index];
      if (hash !== undefined && value !== null) texts.set(hash, value);
    }
  }
  return texts;
}

function fieldsOf(flat: readonly string[]): Partial<Record<string, string>> {
  const fields: Partial<Record<string, string>> = {};
  for (let at = 0; at < flat.length; at += 2) {
    const name = flat[at];
    if (name !== undefined) fields[name] = flat[at + 1] ?? '';
  }
  return fields;
}
