import { readFileSync } from 'node:fs';
import type { Redis } from 'ioredis';
import type { Job } from './dispatch.ts';
import type { Keys } from './keys.ts';
import { patiently } from './redis.ts';
import {
  type Address,
  type BeginAnswer,
  type Call,
  DEFAULT_TIMING,
  type FinishAnswer,
  type FinishOptions,
  beginAnswer,
  finishAnswer,
  isMoved,
  jobOf,
  submitAnswers,
  type MailboxTiming,
  type Moved,
  type Reply,
  type SubmitAnswer,
  type SubmitCommand,
  type SubmitOptions,
  text,
} from './script-replies.ts';

const SESSION_SCRIPTS = { submit: 8, begin: 6, finish: 9, cancel: 6, tick: 9 } as const;
const PLAIN_SCRIPTS = { due: 2, admit: 2, renew: 3, append: 2, reap: 1, engine: 1, trim: 2 } as const;
type ScriptName = keyof typeof SESSION_SCRIPTS | keyof typeof PLAIN_SCRIPTS;

const read = (name: string): string => readFileSync(new URL(`../lua/${name}.lua`, import.meta.url), 'utf8');

/** The Lua of a script as Redis gets it: a session script reads the record once and writes it once (`flush`). */
export function scriptSource(name: ScriptName): string {
  if (!(name in SESSION_SCRIPTS)) return read(name);
  return `${read('lib')}local function main()\n${read(name)}\nend\nlocal out = main()\nflush()\nreturn out`;
}

/**
 * The scripts that decide everything that must be decided at one moment, as typed calls. The contract of each is the
 * header of its Lua file; every call may be repeated after an error.
 */
export class Scripts {
  readonly redis: Redis;
  readonly keys: Keys;
  readonly timing: MailboxTiming;
  readonly #calls = new Map<ScriptName, Call>();

  /** @param options `patient`: a call waits while the server can only refuse it (full, loading, read-only) */
  constructor(
    redis: Redis,
    keys: Keys,
    timing: MailboxTiming = DEFAULT_TIMING,
    options: { readonly patient?: boolean } = {},
  ) {
    this.redis = redis;
    this.keys = keys;
    this.timing = timing;
    for (const [name, numberOfKeys] of Object.entries({ ...SESSION_SCRIPTS, ...PLAIN_SCRIPTS }) as [
      ScriptName,
      number,
    ][]) {
      const command = `hf_${name}`;
      redis.defineCommand(command, { numberOfKeys, lua: scriptSource(name) });
      const call: unknown = Reflect.get(redis, command);
      if (typeof call !== 'function') throw new Error(`ioredis did not define ${command}`);
      const once: Call = async (...args) => (await Reflect.apply(call, redis, args)) as unknown;
      this.#calls.set(
        name,
        options.patient === true ? async (...args) => await patiently(async () => await once(...args)) : once,
      );
    }
  }

  async submit(
    at: Address,
    options: SubmitOptions,
    commands: readonly SubmitCommand[],
  ): Promise<Moved | { readonly job: Job | undefined; readonly answers: readonly SubmitAnswer[] }> {
    const sweep = options.sweepId === undefined ? this.keys.record(at.key) : this.keys.sweep(options.sweepId);
    const flat = commands.flatMap((command) => [
      command.kind,
      command.commandId,
      command.digest,
      command.payload,
      command.when ?? 'now',
    ]);
    const reply = await this.#run(
      'submit',
      ...this.#sessionKeys(at),
      sweep,
      this.keys.streams,
      ...this.#common(at),
      options.sessionId,
      options.identity,
      options.parkedLimit,
      options.unreadLimit,
      options.waitTtlMs,
      options.sessionTtlMs,
      at.replyTo,
      options.seedQueue,
      ...flat,
    );
    if (isMoved(reply)) return { moved: text(reply, 1) };
    return { job: jobOf(reply, 0), answers: submitAnswers(reply, commands.length) };
  }

  async begin(at: Address, commandId: string, nonce: string, maxBegins: number): Promise<BeginAnswer> {
    const reply = await this.#run('begin', ...this.#sessionKeys(at), ...this.#common(at), commandId, nonce, maxBegins);
    return beginAnswer(reply);
  }

  /** `commandNumber` names the journal; `keepMs` is how long it outlives the session's deadline. */
  async append(
    at: Address,
    commandId: string,
    commandNumber: string,
    fence: string,
    entry: {
      readonly phase: 'intent' | 'outcome';
      readonly kind: 'model' | 'tool' | 'mcp';
      readonly act: string;
      readonly data: string;
    },
    keepMs: number,
  ): Promise<{ readonly status: 'ok' | 'fenced' } | { readonly status: 'cancelled'; readonly code: string }> {
    const reply = await this.#run(
      'append',
      this.keys.record(at.key),
      this.keys.journal(at.key, commandNumber),
      commandId,
      fence,
      entry.phase,
      entry.kind,
      entry.act,
      entry.data,
      keepMs,
    );
    const status = text(reply, 0);
    return status === 'cancelled' ? { status, code: text(reply, 1) } : { status: status === 'ok' ? 'ok' : 'fenced' };
  }

  async renew(
    at: Address,
    commandId: string,
    fence: string,
    lease: { readonly engine: string; readonly member: string; readonly ttlMs: number } | undefined,
  ): Promise<{ readonly status: 'ok' | 'fenced' | 'lost' } | { readonly status: 'cancelled'; readonly code: string }> {
    const record = this.keys.record(at.key);
    const leases = lease === undefined ? record : this.keys.leases(lease.engine);
    const reply = await this.#run(
      'renew',
      record,
      leases,
      this.keys.due,
      commandId,
      fence,
      lease?.member ?? '',
      lease?.ttlMs ?? 0,
      at.key,
      this.timing.lapseMs,
    );
    const status = text(reply, 0);
    if (status === 'cancelled') return { status, code: text(reply, 1) };
    return { status: status === 'ok' || status === 'lost' ? status : 'fenced' };
  }

  async finish(at: Address, options: FinishOptions): Promise<FinishAnswer> {
    const record = this.keys.record(at.key);
    const engine = options.engine;
    const flags = `${options.released ? 'r' : ''}${options.lost ? 'l' : ''}`;
    const reply = await this.#run(
      'finish',
      ...this.#sessionKeys(at),
      engine === '' ? record : this.keys.leases(engine),
      engine === '' ? record : this.keys.bound(engine),
      options.blob === '' ? record : options.blob,
      ...this.#common(at),
      options.commandId,
      options.fence,
      options.resultClass,
      options.code,
      options.body,
      options.blob,
      options.blobTtlMs,
      options.holdMs,
      options.queue,
      engine,
      options.descriptor,
      flags,
      options.nextNonce,
      options.maxBegins,
      this.keys.slotsChannel,
    );
    return finishAnswer(reply);
  }

  async cancel(
    at: Address,
    commandId: string,
    code: string,
  ): Promise<
    | Moved
    | { readonly status: 'refused' }
    | { readonly status: 'late'; readonly resultClass: string }
    | { readonly status: 'accepted'; readonly how: string; readonly job: Job | undefined }
  > {
    const reply = await this.#run('cancel', ...this.#sessionKeys(at), ...this.#common(at), commandId, code, at.replyTo);
    if (isMoved(reply)) return { moved: text(reply, 1) };
    const status = text(reply, 0);
    if (status === 'refused') return { status };
    if (status === 'late') return { status, resultClass: text(reply, 1) };
    return { status: 'accepted', how: text(reply, 1), job: jobOf(reply, 2) };
  }

  /** `engineGraceMs` undefined: do not judge engines. */
  async tick(
    at: Address,
    engine: string,
    engineGraceMs: number | undefined,
  ): Promise<{ readonly status: string; readonly job: Job | undefined }> {
    const record = this.keys.record(at.key);
    const reply = await this.#run(
      'tick',
      ...this.#sessionKeys(at),
      engine === '' ? record : this.keys.leases(engine),
      engine === '' ? record : this.keys.bound(engine),
      this.keys.engines,
      ...this.#common(at),
      engine,
      engineGraceMs ?? 1e15,
      at.replyTo,
    );
    return { status: text(reply, 0), job: jobOf(reply, 1) };
  }

  async due(
    limit: number,
    claimMs: number,
    engineGraceMs: number,
  ): Promise<{ readonly sessions: string[]; readonly lapsedEngines: string[] }> {
    const reply = (await this.#call('due')(this.keys.due, this.keys.engines, limit, claimMs, engineGraceMs)) as [
      string[],
      string[],
    ];
    return { sessions: reply[0], lapsedEngines: reply[1] };
  }

  async admit(engine: string, member: string, ttlMs: number, limit: number): Promise<'ok' | 'full' | 'no_engine'> {
    return (await this.#call('admit')(this.keys.leases(engine), this.keys.engines, member, ttlMs, limit, engine)) as
      | 'ok'
      | 'full'
      | 'no_engine';
  }

  async reap(
    engine: string,
    member: string,
    graceMs: number,
    step: 'claim' | 'done',
  ): Promise<'live' | 'claimed' | 'free' | 'ok'> {
    return (await this.#call('reap')(this.keys.leases(engine), member, graceMs, step)) as
      | 'live'
      | 'claimed'
      | 'free'
      | 'ok';
  }

  async renewEngine(engine: string, ttlMs: number): Promise<void> {
    await this.#call('engine')(this.keys.engines, engine, ttlMs);
  }

  async trim(
    replyTo: string,
    limit: number,
    resultsTtlMs: number,
    groupTtlMs: number,
  ): Promise<{ readonly dropped: number; readonly groups: string[]; readonly blobs: string[] }> {
    const reply = await this.#run(
      'trim',
      this.keys.results(replyTo),
      this.keys.streams,
      limit,
      resultsTtlMs,
      groupTtlMs,
      replyTo,
    );
    const groups = Number(reply[1]);
    return {
      dropped: Number(reply[0]),
      groups: reply.slice(2, 2 + groups).map(String),
      blobs: reply.slice(2 + groups).map(String),
    };
  }

  #sessionKeys(at: Address): string[] {
    const record = this.keys.record(at.key);
    return [record, `${record}:m`, `${record}:p`, `${record}:r`, this.keys.results(at.replyTo), this.keys.due];
  }

  #common(at: Address): (string | number)[] {
    const { recheckMs, receiptMs, lapseMs, graceMs } = this.timing;
    return [at.key, recheckMs, receiptMs, this.keys.cancelChannel, lapseMs, graceMs];
  }

  #call(name: ScriptName): Call {
    const call = this.#calls.get(name);
    if (call === undefined) throw new Error(`script ${name} is not defined`);
    return call;
  }

  async #run(name: ScriptName, ...args: (string | number)[]): Promise<Reply> {
    return (await this.#call(name)(...args)) as Reply;
  }
}
