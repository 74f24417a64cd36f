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

test('an activation that names another model than the session has is refused, whenever it is handed in', async () => {
  await using fleet = await startFleet({ redisUrl: inject('redisUrl') });
  await using session = await fleet.client.open(fleet.seed('model'));
  const activate = async (model: string): Promise<unknown> =>
    await fleet.client.activate({
      session_id: 'model',
      activation_id: `with.${model}`,
      request: { input: 'hi', model },
    });
  await expect(activate('other')).rejects.toMatchObject({
    code: 'refused/invalid',
    message: "activate is not valid: request.model: must equal the session's (echo)",
  });
  expect(await activate('echo')).toMatchObject({ class: 'ok' });
  expect((await session.close()).class).toBe('ok');
  await expect(activate('echo.2')).rejects.toMatchObject({ code: 'refused/session_closed' });
});
