import { FleetClient } from '@hermes-fleet/producer';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type RedisServer, startRedis } from '../setup/redis-server.ts';
import { seedBody } from '../setup/seed.ts';

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(async () => await redis.stop());

const connect = async (): Promise<FleetClient> => await FleetClient.connect({ redisUrl: redis.url, fleetId: 'waits' });

/** How long a promise takes to reject, and with what. */
async function rejection(work: Promise<unknown>): Promise<{ readonly reason: unknown; readonly ms: number }> {
  const begun = performance.now();
  const reason: unknown = await work.then(
    () => 'it resolved',
    (error: unknown) => error,
  );
  return { reason, ms: performance.now() - begun };
}

test('a wait ends with its signal, also while Redis is frozen', async () => {
  await using client = await connect();
  await client.submit({ seed: seedBody({ session_id: 'frozen' }) });
  redis.process.kill('SIGSTOP');
  try {
    const waits = [1, 2].map(async () => {
      const signal = AbortSignal.timeout(300);
      return await rejection(client.wait('frozen', 'seed', { signal }));
    });
    for (const { reason, ms } of await Promise.all(waits)) {
      expect(reason).toMatchObject({ name: 'TimeoutError' });
      expect(ms).toBeLessThan(2000);
    }
  } finally {
    redis.process.kill('SIGCONT');
  }
});

test('closing a client ends its waits, in a sentence', async () => {
  const client = await connect();
  await client.submit({ seed: seedBody({ session_id: 'closed' }) });
  const waiting = rejection(client.wait('closed', 'seed'));
  await new Promise((resolve) => setTimeout(resolve, 200));
  await client[Symbol.asyncDispose]();
  const { reason, ms } = await waiting;
  expect(reason).toMatchObject({ code: 'refused/redis', message: 'the client was closed' });
  expect(ms).toBeLessThan(3000);
});
