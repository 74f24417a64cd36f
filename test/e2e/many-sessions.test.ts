import type { CommandResult } from '@hermes-fleet/shared';
import { expect, inject, test } from 'vitest';
import { startFleet, type TestFleet } from '../setup/fleet.ts';

const SESSIONS = 1000;

/** Submits whole sessions and reads every result off the stream, in the order in which it was published. */
async function runAll(fleet: TestFleet, sessions: number, group: string): Promise<CommandResult[]> {
  const results: CommandResult[] = [];
  const stop = new AbortController();
  const reading = (async () => {
    for await (const entry of fleet.client.results({ group, signal: stop.signal })) {
      results.push(entry.result);
      await entry.ack();
      if (results.length === 3 * sessions) return;
    }
  })();
  const ids = Array.from({ length: sessions }, (_, index) => `many/${index}`);
  await Promise.all(
    ids.map(async (id) => {
      await fleet.client.submit({
        seed: fleet.seed(id),
        activations: [{ session_id: id, activation_id: 'a', request: { input: `hello ${id}` } }],
        close: { session_id: id, when: 'idle' },
      });
    }),
  );
  await reading;
  stop.abort();
  return results;
}

function expectOrder(results: readonly CommandResult[], sessions: number): void {
  const bySession = new Map<string, string[]>();
  for (const { session_id: id, command_id: command } of results)
    bySession.set(id, [...(bySession.get(id) ?? []), command]);
  expect(bySession.size).toBe(sessions);
  for (const commands of bySession.values()) expect(commands).toEqual(['seed', 'a', 'close']);
}

test(
  `${SESSIONS} sessions on 4 worker processes give one result per command, in order`,
  { timeout: 300_000 },
  async () => {
    await using fleet = await startFleet({ redisUrl: inject('redisUrl'), workers: 4, env: { FLEET_SLOTS: '24' } });
    const begun = performance.now();
    const results = await runAll(fleet, SESSIONS, 'reader');
    console.log(`${SESSIONS} sessions in ${((performance.now() - begun) / 1000).toFixed(1)} s`);
    expect(results.filter(({ class: resultClass }) => resultClass !== 'ok')).toEqual([]);
    expectOrder(results, SESSIONS);
  },
);

test('50 sessions on 2 slots all close', { timeout: 120_000 }, async () => {
  await using fleet = await startFleet({ redisUrl: inject('redisUrl'), workers: 2, env: { FLEET_SLOTS: '2' } });
  const results = await runAll(fleet, 50, 'reader');
  expect(results.filter(({ class: resultClass }) => resultClass !== 'ok')).toEqual([]);
  expectOrder(results, 50);
});
