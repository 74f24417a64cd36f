import { randomUUID } from 'node:crypto';
import {
  type Address,
  type CommandView,
  type FinishOptions,
  Keys,
  Scripts,
  sessionKey,
  type SubmitCommand,
  type SubmitOptions,
} from '@hermes-fleet/shared';
import type { Redis } from 'ioredis';

/** Far longer than a test takes, even on a loaded machine. */
const LONG_MS = 60_000;

export const SEED: SubmitCommand = { kind: 'seed', commandId: 'seed', digest: 'd', payload: '{}' };
export const OTHER_SEED: SubmitCommand = { ...SEED, digest: 'other' };
export const CLOSE_IDLE: SubmitCommand = { kind: 'close', commandId: 'close', digest: '', payload: '', when: 'idle' };
export const CLOSE_NOW: SubmitCommand = { ...CLOSE_IDLE, when: 'now' };
export const activation = (commandId: string, digest = 'd'): SubmitCommand => ({
  kind: 'activate',
  commandId,
  digest,
  payload: '{}',
});

export const ending = (commandId: string, fence: string, more: Partial<FinishOptions> = {}): FinishOptions => ({
  commandId,
  fence,
  resultClass: 'ok',
  code: '',
  body: 'null',
  blob: '',
  blobTtlMs: 60_000,
  holdMs: 1000,
  queue: 'any',
  engine: '',
  descriptor: '',
  released: false,
  lost: false,
  nextNonce: '',
  maxBegins: 3,
  ...more,
});

/** One session of a fleet of its own, moved along by direct calls of the scripts. */
export class SessionUnderTest {
  readonly keys = new Keys(`scripts-${randomUUID()}`);
  readonly scripts: Scripts;
  readonly redis: Redis;
  readonly at: Address = { key: sessionKey('S'), replyTo: 'c' };

  /** @param graceMs for a test that waits for the end of a grace */
  constructor(redis: Redis, graceMs = LONG_MS) {
    this.redis = redis;
    this.scripts = new Scripts(redis, this.keys, {
      recheckMs: LONG_MS,
      receiptMs: 300_000,
      lapseMs: LONG_MS,
      graceMs,
    });
  }

  /** `commandId` of the job to add and the answers, as `status detail`. */
  async submit(
    commands: readonly SubmitCommand[],
    options: Partial<SubmitOptions> = {},
    at = this.at,
  ): Promise<{ readonly job: string | undefined; readonly answers: readonly string[] }> {
    const answer = await this.scripts.submit(
      at,
      {
        sessionId: 'S',
        identity: 'right',
        parkedLimit: 64,
        unreadLimit: 100_000,
        waitTtlMs: 60_000,
        sessionTtlMs: 60_000,
        seedQueue: 'new-stub',
        sweepId: undefined,
        ...options,
      },
      commands,
    );
    if ('moved' in answer) return { job: undefined, answers: [`moved ${answer.moved}`] };
    return {
      job: answer.job?.commandId,
      answers: answer.answers.map(({ status, detail }) => `${status} ${detail}`),
    };
  }
  async answersTo(...commands: SubmitCommand[]): Promise<readonly string[]> {
    return (await this.submit(commands)).answers;
  }

  async begin(commandId: string, nonce = `n${commandId}`): Promise<CommandView> {
    const answer = await this.scripts.begin(this.at, commandId, nonce, 3);
    if (answer.status !== 'begun') throw new Error(`begin said ${answer.status}`);
    return answer.view;
  }

  /** Begins a command and ends it. */
  async run(commandId: string, more: Partial<FinishOptions> = {}): Promise<CommandView> {
    const view = await this.begin(commandId);
    const answer = await this.scripts.finish(this.at, ending(commandId, view.fence, more));
    if (answer.status !== 'published') throw new Error(`finish said ${answer.status}`);
    return view;
  }

  /** Seeds it with a sandbox of its own on an engine. */
  async seedOn(engine: string): Promise<CommandView> {
    await this.scripts.renewEngine(engine, 60_000);
    await this.submit([SEED]);
    await this.scripts.admit(engine, `${this.at.key}.nseed`, 60_000, 5);
    return await this.run('seed', { engine, queue: `engine-${engine}`, descriptor: '{"box":1}' });
  }

  /** What is in the results stream, as `command class code`. */
  async results(): Promise<string[]> {
    const entries = await this.redis.xrange(this.keys.results(this.at.replyTo), '-', '+');
    return entries.map(([, [, , , command = '', , , , result = '{}']]) => {
      const { class: resultClass, code } = JSON.parse(result) as { class: string; code: string };
      return `${command} ${resultClass} ${code}`.trim();
    });
  }
  async field(name: string): Promise<string | null> {
    return await this.redis.hget(this.keys.record(this.at.key), name);
  }
  async setField(name: string, value: string): Promise<void> {
    await this.redis.hset(this.keys.record(this.at.key), name, value);
  }
}

/** How a session gets into each state of the contract. */
export const STATES = {
  unknown: async () => undefined,
  new: async (session: SessionUnderTest) => void (await session.submit([SEED])),
  ready: async (session: SessionUnderTest) => {
    await session.submit([SEED]);
    await session.run('seed');
  },
  failed: async (session: SessionUnderTest) => {
    await session.submit([SEED]);
    await session.run('seed', { resultClass: 'failed', code: 'no_answer' });
  },
  lost: async (session: SessionUnderTest) => {
    await session.submit([SEED, activation('gone')]);
    await session.run('seed');
    await session.run('gone', { resultClass: 'infra', code: 'sandbox_lost', lost: true });
  },
  closing: async (session: SessionUnderTest) => {
    await STATES.ready(session);
    await session.submit([CLOSE_IDLE]);
  },
  closed: async (session: SessionUnderTest) => {
    await STATES.closing(session);
    await session.run('close');
  },
} satisfies Record<string, (session: SessionUnderTest) => Promise<void>>;
