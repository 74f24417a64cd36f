import { connectRedis, Dispatcher, Keys, Scripts, sessionKey } from '@hermes-fleet/shared';
import { FlowProducer } from 'bullmq';
import type { Redis } from 'ioredis';
import { startProgram } from '../setup/processes.ts';
import { startRedis } from '../setup/redis-server.ts';
import { limitRow, median, ratioRow, type Row, timed } from './report.ts';

const SESSIONS = 1000;
const ROUNDS = 3;
const PAYLOAD = JSON.stringify({
  sandbox: { provider: 'stub', image: 'x' },
  model: { base_url: 'http://m' },
  pad: 'p'.repeat(120),
});
const PLAN = [
  { kind: 'seed', commandId: 'seed', digest: 'd', payload: PAYLOAD },
  { kind: 'activate', commandId: 'a', digest: 'd', payload: PAYLOAD },
  { kind: 'close', commandId: 'close', digest: '-', payload: '', when: 'idle' },
] as const;
const SUBMIT = {
  identity: '',
  parkedLimit: 64,
  unreadLimit: 1e9,
  waitTtlMs: 1e9,
  sessionTtlMs: 1e9,
  seedQueue: 'new-stub',
  sweepId: undefined,
};

async function readAll(redis: Redis, stream: string, count: number): Promise<void> {
  for (let read = 0; read < count;) {
    const reply = (await redis.xreadgroup('GROUP', 'g', 'c', 'COUNT', 500, 'BLOCK', 2000, 'STREAMS', stream, '>')) as
      | [string, [string, string[]][]][]
      | null;
    const entries = reply?.[0]?.[1] ?? [];
    read += entries.length;
    if (entries.length > 0) await redis.xack(stream, 'g', ...entries.map(([id]) => id));
  }
}

async function round(url: string, mode: 'mail' | 'flow', fleetId: string): Promise<number> {
  const redis = connectRedis(url, () => undefined);
  const reader = connectRedis(url, () => undefined);
  const keys = new Keys(fleetId);
  const env = { FLEET_REDIS_URL: url, FLEET_ID: fleetId, FLEET_CONCURRENCY: '25', FLEET_SLOTS: '25' };
  await using one = startProgram('test/bench/noop-worker.ts', [mode], env);
  await using two = startProgram('test/bench/noop-worker.ts', [mode], env);
  for (const worker of [one, two]) await worker.line((line) => line.includes('ready'));
  await redis.xgroup('CREATE', keys.results('default'), 'g', '0', 'MKSTREAM');
  const flow = new FlowProducer({ connection: redis, prefix: keys.prefix });
  const scripts = new Scripts(redis, keys);
  const dispatcher = new Dispatcher(keys, redis);
  const job = { removeOnComplete: true, removeOnFail: true };
  const ids = Array.from({ length: SESSIONS }, (_, index) => `s${index}`);
  const ms = await timed(async () => {
    const reading = readAll(reader, keys.results('default'), 3 * SESSIONS);
    for (let at = 0; at < SESSIONS; at += 50) {
      const part = ids.slice(at, at + 50);
      if (mode === 'flow') {
        await flow.addBulk(
          part.map((s) => ({
            name: 'close',
            queueName: 'any',
            data: { s, c: 'close' },
            opts: job,
            children: [
              {
                name: 'activate',
                queueName: 'any',
                data: { s, c: 'a', PAYLOAD },
                opts: job,
                children: [{ name: 'seed', queueName: 'new-stub', data: { s, c: 'seed', PAYLOAD }, opts: job }],
              },
            ],
          })),
        );
      } else {
        await Promise.all(
          part.map(async (sessionId) => {
            const key = sessionKey(sessionId);
            const answer = await scripts.submit({ key, replyTo: 'default' }, { ...SUBMIT, sessionId }, PLAN);
            if ('job' in answer) await dispatcher.add(answer.job, key, 'default');
          }),
        );
      }
    }
    await reading;
  });
  await flow.close();
  await dispatcher.close();
  redis.disconnect();
  reader.disconnect();
  return (3 * SESSIONS * 1000) / ms;
}

/** Commands per second, submit to result read, against a BullMQ flow of the same jobs. */
export async function dispatchRow(): Promise<Row> {
  const ours: number[] = [];
  const flow: number[] = [];
  for (let n = 0; n < ROUNDS; n++) {
    await using redis = await disposableRedis();
    flow.push(await round(redis.url, 'flow', `flow${n}`));
    ours.push(await round(redis.url, 'mail', `mail${n}`));
  }
  return ratioRow(
    {
      what: 'commands, submit → result read, no-op processor',
      baseline: 'BullMQ flow + XADD',
      samples: ours,
      baselineSamples: flow,
      unit: '/s',
    },
    1,
    true,
  );
}

export async function disposableRedis(): Promise<{ readonly url: string } & AsyncDisposable> {
  const redis = await startRedis();
  return { url: redis.url, [Symbol.asyncDispose]: async () => await redis.stop() };
}

/** Time of a whole session's scripts while many others wait, and what a waiting one takes in memory. */
export async function depthRows(deep: number): Promise<Row[]> {
  await using server = await disposableRedis();
  const redis = connectRedis(server.url, () => undefined);
  const keys = new Keys('depth');
  const scripts = new Scripts(redis, keys);
  const dispatcher = new Dispatcher(keys, redis);
  let next = 0;
  const submit = async (): Promise<string> => {
    const sessionId = `agent-session-${sessionKey(String(next++))}`;
    const key = sessionKey(sessionId);
    const answer = await scripts.submit({ key, replyTo: 'default' }, { ...SUBMIT, sessionId }, PLAN);
    if ('job' in answer) await dispatcher.add(answer.job, key, 'default');
    return key;
  };
  const fill = async (count: number): Promise<void> => {
    for (let at = next; at < count; at += 100) await Promise.all(Array.from({ length: 100 }, submit));
  };
  const memory = async (): Promise<number> => Number(/used_memory:(\d+)/.exec(await redis.info('memory'))?.[1]);
  const session = async (): Promise<void> => {
    const at = { key: await submit(), replyTo: 'default' };
    for (const commandId of ['seed', 'a', 'close']) {
      const begun = await scripts.begin(at, commandId, `n${next}${commandId}`, 9);
      if (begun.status !== 'begun') throw new Error(`begin said ${begun.status}`);
      await scripts.finish(at, {
        commandId,
        fence: begun.view.fence,
        resultClass: 'ok',
        code: '',
        body: 'null',
        blob: '',
        blobTtlMs: 1000,
        holdMs: 1000,
        queue: 'any',
        engine: '',
        descriptor: '{}',
        released: false,
        lost: false,
        nextNonce: '',
        maxBegins: 9,
      });
    }
  };
  const sample = async (): Promise<number[]> => {
    const times: number[] = [];
    for (let n = 0; n < 300; n++) times.push((await timed(session)) / 3);
    return times;
  };
  const before = await memory();
  await fill(1000);
  const perSession = ((await memory()) - before) / 1000 - 2 * PAYLOAD.length;
  const shallow = await sample();
  await fill(deep);
  const far = await sample();
  await dispatcher.close();
  redis.disconnect();
  return [
    ratioRow(
      {
        what: `cost per command, 1,000 → ${deep} waiting sessions`,
        baseline: 'itself at 1,000',
        samples: far,
        baselineSamples: shallow,
        unit: 'ms',
      },
      1.2,
    ),
    limitRow(
      {
        what: 'memory per waiting session, less payload',
        samples: [perSession],
        unit: 'B',
        figure: median([perSession]),
      },
      4096,
    ),
  ];
}
