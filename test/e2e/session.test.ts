import { answerOf } from '@hermes-fleet/producer';
import { expect, inject, test } from 'vitest';
import { startFleet } from '../setup/fleet.ts';

test('a session is seeded, activated twice in the same sandbox, and closed, and nothing of it is left', async () => {
  await using fleet = await startFleet({ redisUrl: inject('redisUrl') });
  await using session = await fleet.client.open(fleet.seed('one'));
  const first = await session.activate('hello');
  expect(first.class).toBe('ok');
  expect(answerOf(first)).toBe('hello');
  const second = await session.activate('again');
  expect(answerOf(second)).toBe('again');
  const closed = await session.close();
  expect(closed).toMatchObject({ class: 'ok', body: { session: { class: 'ok', code: 'done' }, sandbox: 'removed' } });
  expect(closed.body?.observations.records.filter(({ kind }) => kind === 'agent_invocation')).toHaveLength(2);
});
