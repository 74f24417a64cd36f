import { afterAll, afterEach, beforeAll, expect, inject } from 'vitest';
import { startFleet, type TestFleet } from '../setup/fleet.ts';
import { heldSandbox } from '../setup/go.ts';
import { expectNothingLeft, processesIn } from '../setup/leaks.ts';
import { callTool, hold, say } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: TestFleet;
beforeAll(async () => {
  fleet = await startFleet({ redisUrl: inject('redisUrl'), workers: 2 });
});
afterEach(async () => await expectNothingLeft(fleet));
afterAll(async () => await fleet[Symbol.asyncDispose]());

const activation = (id: string, activationId: string, input = 'hi') => ({
  session_id: id,
  activation_id: activationId,
  request: { input },
});

verifies('close:always', 'closing an unknown session is nothing to close, and blocks a late seed', async () => {
  const closed = await fleet.client.close({ session_id: 'never' });
  expect(closed).toMatchObject({ class: 'ok', code: 'nothing_to_close', body: null, reward_valid: false });
  expect(await fleet.client.close({ session_id: 'never' })).toEqual(closed);
  await expect(fleet.client.seed(fleet.seed('never'))).rejects.toMatchObject({ code: 'refused/session_closed' });
});

verifies('close:always', 'closes that come again or at once give the same receipt', async () => {
  await fleet.client.seed(fleet.seed('thrice'));
  const closes = await Promise.all([1, 2, 3].map(async () => await fleet.client.close({ session_id: 'thrice' })));
  closes.push(await fleet.client.close({ session_id: 'thrice', when: 'idle' }));
  expect(closes[0]).toMatchObject({ class: 'ok', command_id: 'close', body: { sandbox: 'removed' } });
  for (const each of closes) expect(each).toEqual(closes[0]);
});

verifies(
  'close:stops-first',
  'close now cancels the running activation and the waiting ones, and nothing of them is alive when it answers',
  async () => {
    fleet.model.script('sleeper', callTool('terminal', { command: 'setsid sleep 1000 & sleep 1000' }));
    await fleet.client.submit({
      seed: fleet.seed('busy', 'sleeper'),
      activations: ['a', 'b', 'c'].map((id) => activation('busy', id)),
    });
    await expect
      .poll(async () => (await processesIn(fleet.root)).filter((each) => each.includes('sleep 1000')))
      .not.toEqual([]);
    const closed = await fleet.client.close({ session_id: 'busy' });
    expect(await processesIn(fleet.root)).toEqual([]);
    expect(closed).toMatchObject({
      class: 'ok',
      body: { sandbox: 'removed', session: { class: 'cancelled', code: 'by_close' } },
    });
    for (const id of ['a', 'b', 'c'])
      expect(await fleet.client.wait('busy', id)).toMatchObject({ class: 'cancelled', code: 'by_close' });
    const ran = await fleet.client.wait('busy', 'a');
    expect(ran.body).toMatchObject({ counts: { model_calls: 1, tool_calls: 1 } });
  },
);

verifies(
  ['close:always', 'job:ordered'],
  'an idle close waits for its turn, and later activations are refused',
  async () => {
    const held = hold(say('done'));
    fleet.model.script('held', held.script);
    await fleet.client.submit({
      seed: fleet.seed('idle', 'held'),
      activations: [activation('idle', 'a'), activation('idle', 'b')],
      close: { session_id: 'idle', when: 'idle' },
    });
    await expect.poll(() => held.isHolding).toBe(true);
    await expect(fleet.client.activate(activation('idle', 'late'))).rejects.toMatchObject({
      code: 'refused/session_closed',
    });
    held.release();
    const closed = await fleet.client.wait('idle', 'close');
    for (const id of ['a', 'b']) expect((await fleet.client.wait('idle', id)).class).toBe('ok');
    expect(closed).toMatchObject({ class: 'ok', body: { session: { class: 'ok', code: 'done' } } });
  },
);

verifies('close:always', 'close now overtakes an idle close that waits', async () => {
  const held = hold(say('done'));
  fleet.model.script('overtaken', held.script);
  await fleet.client.submit({
    seed: fleet.seed('overtaken', 'overtaken'),
    activations: [activation('overtaken', 'a')],
    close: { session_id: 'overtaken', when: 'idle' },
  });
  await expect.poll(() => held.isHolding).toBe(true);
  const closed = await fleet.client.close({ session_id: 'overtaken', when: 'now' });
  expect(closed).toMatchObject({ class: 'ok', body: { session: { class: 'cancelled', code: 'by_close' } } });
  held.release();
});

verifies(
  ['close:always', 'seed:no-debris'],
  'close now ends a seed that is being made, and its waiting activations',
  async () => {
    const { sandbox } = heldSandbox();
    await fleet.client.submit({
      seed: fleet.seed('unmade', 'echo', { sandbox }),
      activations: [activation('unmade', 'a')],
    });
    await expect
      .poll(async () => await fleet.client.status('unmade'))
      .toMatchObject({ commands: [{ state: 'running' }, {}] });
    const closed = await fleet.client.close({ session_id: 'unmade' });
    expect(closed).toMatchObject({ class: 'ok', body: { sandbox: 'none' } });
    for (const id of ['seed', 'a'])
      expect(await fleet.client.wait('unmade', id)).toMatchObject({ class: 'cancelled', code: 'by_close' });
  },
);

verifies('session:expiry', 'a session that nobody closes is closed by its own time limit, whatever runs', async () => {
  const held = hold(say('never'));
  fleet.model.script('endless', held.script);
  const timeouts = { session_ttl_s: 1 };
  await fleet.client.submit({
    seed: fleet.seed('expires', 'endless', { timeouts }),
    activations: [activation('expires', 'a'), activation('expires', 'b')],
  });
  await fleet.client.seed(fleet.seed('expires idle', 'echo', { timeouts }));
  for (const id of ['a', 'b'])
    expect(await fleet.client.wait('expires', id)).toMatchObject({ class: 'cancelled', code: 'expired' });
  for (const id of ['expires', 'expires idle']) {
    await expect.poll(async () => (await fleet.client.status(id)).state, { timeout: 10_000 }).toBe('closed');
    const closed = await fleet.client.close({ session_id: id });
    expect(closed).toMatchObject({ class: 'ok', body: { sandbox: 'removed' } });
  }
  held.release();
});
