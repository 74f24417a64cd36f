import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { CommandView, FinishAnswer, FinishOptions, Job, Next, ResultClass } from '@hermes-fleet/shared';
import {
  type ActivatePayload,
  addressOf,
  borrowedName,
  chance,
  type HarnessFleet,
  LEASE_MS,
  LOCK_MS,
  MAX_BEGINS,
  type SeedPayload,
} from './harness-fleet.ts';

export const newNonce = (): string => randomBytes(6).toString('hex');

const SEED_FAILS = 0.05;
const CLOSE_FAILS = 0.02;
const LARGE_BODY = 0.1;
const TAKES_NEXT = 0.8;

interface Outcome {
  resultClass: ResultClass | 'again';
  code: string;
  isLost: boolean;
  isReleased: boolean;
  readonly isBorrowed: boolean;
}

type Ended = { readonly next: Next } | { readonly again: Job } | undefined;

/** One command in the hands of one call of the processor. */
export class Run {
  readonly key: string;
  readonly commandId: string;
  readonly kind: string;
  readonly number: string;
  readonly nonce: string;
  readonly abort = new AbortController();
  /** Own lease, and name of the own sandbox, of a seed. */
  member = '';
  isFinishing = false;
  isEnded = false;
  readonly #fleet: HarnessFleet;
  readonly #engine: string;
  #fence = '';
  #isBeating = false;
  #isMade = false;

  constructor(
    fleet: HarnessFleet,
    engine: string,
    key: string,
    job: Pick<Job, 'commandId' | 'name' | 'jobId'>,
    nonce: string,
  ) {
    this.#fleet = fleet;
    this.#engine = engine;
    this.key = key;
    this.commandId = job.commandId;
    this.kind = job.name;
    this.number = job.jobId.split('.')[1] ?? '';
    this.nonce = nonce;
  }

  /** One call at most is outstanding: they would pile up while Redis is away. */
  async beat(): Promise<void> {
    if (this.#isBeating || this.#fence === '' || this.isEnded) return;
    this.#isBeating = true;
    const lease = this.member === '' ? undefined : { engine: this.#engine, member: this.member, ttlMs: LEASE_MS };
    try {
      const answer = await this.#fleet.scripts.renew(addressOf(this.key), this.commandId, this.#fence, lease);
      if (!this.isFinishing && answer.status !== 'ok') this.abort.abort(answer.status);
    } catch {
      // The next beat says it again.
    }
    this.#isBeating = false;
  }

  async release(by: string): Promise<void> {
    if (this.#isMade) await this.#fleet.world.remove(this.member, by);
    if (this.member !== '') await this.#fleet.redis.zrem(this.#fleet.keys.leases(this.#engine), this.member);
    this.#isMade = false;
    this.member = '';
  }

  /** Executes the command and finishes it. Undefined: it is no longer ours. */
  async execute(view: CommandView): Promise<Ended> {
    this.#fence = view.fence;
    const { isBorrowed = false } = JSON.parse(view.seedPayload || '{}') as Partial<SeedPayload>;
    const outcome: Outcome = {
      resultClass: view.verdict === 'run' ? 'ok' : view.verdict === 'cancelled' ? 'cancelled' : 'infra',
      code: view.code,
      isLost: false,
      isReleased: false,
      isBorrowed,
    };
    const box = isBorrowed ? borrowedName(this.key) : view.lease;
    if (this.kind === 'seed' && isBorrowed) await this.release('borrowed');
    if (this.kind === 'activate' && box !== '') await this.#fleet.world.stopEarlier(box, this.#epoch);
    if (view.verdict === 'run') {
      if (this.kind === 'seed') await this.#build(outcome, view.payload);
      else if (this.kind === 'activate') await this.#activate(outcome, box, view.payload);
      else await this.#close(outcome, view.lease);
    }
    if (this.abort.signal.aborted && this.kind !== 'close' && !(await this.#aborted(outcome, box))) return undefined;
    return await this.#finish(view, outcome);
  }

  get #epoch(): string {
    return this.#fence.split('.')[0] ?? '';
  }

  async #wait(ms: number): Promise<void> {
    await sleep(ms, undefined, { signal: this.abort.signal }).catch(() => undefined);
  }

  async #build(outcome: Outcome, payload: string): Promise<void> {
    if (!outcome.isBorrowed) {
      this.#isMade = true;
      await this.#fleet.world.create(this.member, this.key, this.#engine);
    }
    await this.#wait(Math.random() * (JSON.parse(payload) as SeedPayload).ms);
    if (chance(SEED_FAILS)) Object.assign(outcome, { resultClass: 'failed', code: 'no_answer' });
  }

  async #close(outcome: Outcome, lease: string): Promise<void> {
    if (chance(CLOSE_FAILS)) outcome.resultClass = 'infra';
    else if (lease !== '') await this.#fleet.world.remove(lease, 'close');
  }

  /** False: the command is another's now, nothing may be published. */
  async #aborted(outcome: Outcome, box: string): Promise<boolean> {
    const why: unknown = this.abort.signal.reason;
    if (this.kind === 'activate' && box !== '') await this.#fleet.world.stop(box, this.#epoch);
    outcome.resultClass = 'cancelled';
    if (why === 'fenced' || why === 'dead') {
      await this.release('fenced');
      return false;
    }
    if (why === 'lost') {
      await this.release('lost');
      Object.assign(outcome, { resultClass: 'again', isReleased: true });
    }
    return true;
  }

  async #activate(outcome: Outcome, box: string, payload: string): Promise<void> {
    const { ms, acts, tools } = JSON.parse(payload) as ActivatePayload;
    const started = await this.#fleet.world.start(box, this.#epoch, this.key, this.number);
    if (started !== 'ok') {
      const isLost = started === 'none';
      Object.assign(outcome, { resultClass: 'infra', code: isLost ? 'sandbox_lost' : 'stale', isLost });
      return;
    }
    for (let act = 0; act < acts && !this.abort.signal.aborted; act++) {
      const isTool = chance(tools);
      if (!(await this.#mayAct(act, isTool))) break;
      if (isTool && (await this.#fleet.world.tool(box, this.#epoch, this.key, this.number, act)) !== 'ok')
        this.abort.abort('dead');
      await this.#wait(ms / acts);
      const stored = await this.#append('outcome', act, isTool);
      if (stored !== 'ok') this.abort.abort(stored);
    }
    await this.#fleet.world.stop(box, this.#epoch);
    if (chance(0.2)) outcome.resultClass = chance(0.5) ? 'incomplete' : 'failed';
  }

  /** Only a fresh permission counts: a worker that was frozen must not act on an old one. */
  async #mayAct(act: number, isTool: boolean): Promise<boolean> {
    for (;;) {
      const sent = performance.now();
      const answer = await this.#append('intent', act, isTool);
      if (answer !== 'ok') this.abort.abort(answer);
      if (this.abort.signal.aborted) return false;
      if (performance.now() - sent < LOCK_MS) return true;
    }
  }

  async #append(phase: 'intent' | 'outcome', act: number, isTool: boolean): Promise<string> {
    const entry = { phase, kind: isTool ? 'tool' : 'model', act: String(act), data: '' } as const;
    const { scripts } = this.#fleet;
    const answer = await scripts.append(addressOf(this.key), this.commandId, this.number, this.#fence, entry, 600_000);
    return answer.status;
  }

  async #finish(view: CommandView, outcome: Outcome): Promise<Ended> {
    this.isFinishing = true;
    const nextNonce = chance(TAKES_NEXT) && !this.abort.signal.aborted ? newNonce() : '';
    for (;;) {
      if (this.kind === 'seed' && outcome.resultClass !== 'ok' && this.member !== '') {
        await this.#fleet.world.remove(this.member, 'seed');
        this.#isMade = false;
        outcome.isReleased = true;
      }
      const blob = outcome.resultClass !== 'again' && chance(LARGE_BODY) ? await this.#writeBlob() : '';
      const options = this.#finishOptions(view, outcome, blob, nextNonce);
      const answer = await this.#fleet.scripts.finish(addressOf(this.key), options);
      const ended = await this.#ended(answer, blob);
      if (ended !== 'repeat') return ended;
      if (answer.status === 'cancel_pending') outcome.resultClass = 'cancelled';
      if (answer.status === 'lease_lost') Object.assign(outcome, { resultClass: 'again', isReleased: true });
    }
  }

  #finishOptions(view: CommandView, outcome: Outcome, blob: string, nextNonce: string): FinishOptions {
    const isSeed = this.kind === 'seed';
    const ownEngine = outcome.isBorrowed ? '' : this.#engine;
    return {
      commandId: this.commandId,
      fence: this.#fence,
      resultClass: outcome.resultClass,
      code: outcome.code,
      body: 'null',
      blob,
      blobTtlMs: 600_000,
      holdMs: 600_000,
      queue: ownEngine === '' ? 'any' : `engine-${ownEngine}`,
      engine: isSeed ? ownEngine : view.engine,
      descriptor: isSeed ? '{}' : '',
      released: outcome.isReleased,
      lost: outcome.isLost,
      nextNonce: outcome.resultClass === 'again' ? '' : nextNonce,
      maxBegins: MAX_BEGINS,
    };
  }

  /** Its time is short: finish may find it gone and ask for it again. */
  async #writeBlob(): Promise<string> {
    const blob = this.#fleet.keys.blob(this.key, this.number, this.#fence);
    await this.#fleet.redis.set(blob, 'x'.repeat(1000), 'PX', 4000);
    return blob;
  }

  async #ended(answer: FinishAnswer, blob: string): Promise<Ended | 'repeat'> {
    switch (answer.status) {
      case 'lease_lost':
        await this.release('lease lost');
        return 'repeat';
      case 'blob_missing':
      case 'cancel_pending':
        return 'repeat';
      case 'again':
        return { again: answer.job };
      case 'published':
        return { next: answer.next };
      case 'dup':
        if (answer.fence !== this.#fence) await this.#dropOwn(blob);
        return { next: answer.next };
      case 'fenced':
      case 'gone':
        await this.#dropOwn(blob);
    }
    return undefined;
  }

  async #dropOwn(blob: string): Promise<void> {
    await this.release('not ours');
    if (blob !== '') await this.#fleet.redis.unlink(blob);
  }
}
