import { readFile } from 'node:fs/promises';
import { Keys } from '@hermes-fleet/shared';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, expect, inject } from 'vitest';
import { startFleet, type TestFleet } from '../setup/fleet.ts';
import { expectNothingLeft } from '../setup/leaks.ts';
import { callTool, hold, say, turnOf } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

const MIB = 1024 * 1024;

let fleet: TestFleet;
beforeAll(async () => {
  fleet = await startFleet({ redisUrl: inject('redisUrl'), workers: 1, env: { FLEET_MAX_BODY_MIB: '8' } });
});
afterEach(async () => await expectNothingLeft(fleet));
afterAll(async () => await fleet[Symbol.asyncDispose]());

const activation = (id: string, input = 'hi') => ({ session_id: id, activation_id: 'a', request: { input } });

verifies(
  ['result:class', 'job:once'],
  'an answer of 6 MiB arrives whole, and the sessions beside it do not fall silent',
  async () => {
    const text = `${'0123456789abcdef'.repeat((6 * MIB) / 16)}end`;
    fleet.model.script('large', say(text));
    const held = hold(say('small'));
    fleet.model.script('small', held.script);
    const ids = Array.from({ length: 7 }, (_, index) => `small/${index}`);
    for (const id of ids) await fleet.client.submit({ seed: fleet.seed(id, 'small'), activations: [activation(id)] });
    await fleet.client.seed(fleet.seed('large', 'large'));
    const result = await fleet.client.activate(activation('large'));
    expect(result.class).toBe('ok');
    const message = result.body?.response.output.findLast((item) => item.type === 'message');
    expect(message?.type === 'message' && message.content[0]?.text === text).toBe(true);
    held.release();
    for (const id of ids) expect((await fleet.client.wait(id, 'a')).class).toBe('ok');
    for (const id of [...ids, 'large']) expect((await fleet.client.close({ session_id: id })).class).toBe('ok');
    // Each was begun once: nobody took the busy worker for dead.
    expect(fleet.workers[0]?.output()).not.toContain('"begins":2');
    const redis = new Redis(inject('redisUrl'));
    const blobs = await redis.keys(`${new Keys(fleet.id).prefix}:blob:*`);
    for (const blob of blobs) expect(await redis.pttl(blob)).toBeGreaterThan(0);
    redis.disconnect();
  },
  120_000,
);

verifies(
  'result:class',
  'a result beyond the bound is cut, and says so',
  async () => {
    fleet.model.script('too large', say('x'.repeat(12 * MIB)));
    await fleet.client.seed(fleet.seed('cut', 'too large'));
    const result = await fleet.client.activate(activation('cut'));
    expect(result).toMatchObject({ class: 'ok', body: { complete: false } });
    expect(JSON.stringify(result.body).length).toBeLessThan(8 * MIB);
    expect((await fleet.client.close({ session_id: 'cut' })).class).toBe('ok');
  },
  120_000,
);

verifies(
  'result:class',
  'a command beyond the bound is refused with its size and the bound, and leaves no trace',
  async () => {
    const input = 'x'.repeat(64 * MIB);
    await fleet.client.seed(fleet.seed('command'));
    await expect(fleet.client.activate(activation('command', input))).rejects.toMatchObject({
      code: 'refused/too_large',
      message: expect.stringMatching(/activate is \d+ bytes; 67108864 are allowed/) as string,
    });
    expect((await fleet.client.status('command')).commands).toEqual([{ id: 'seed', state: 'ok' }]);
    const large = await fleet.client.activate(activation('command', 'y'.repeat(4 * MIB)));
    expect(large.class).toBe('ok');
    await fleet.client.close({ session_id: 'command' });
  },
  120_000,
);

verifies(
  ['result:class', 'job:once'],
  'a trajectory of 60 MB arrives whole, beside seven sessions that are not begun again (Q25)',
  async () => {
    await using roomy = await startFleet({
      redisUrl: inject('redisUrl'),
      workers: 1,
      env: { FLEET_LOCK_MS: '5000', FLEET_RENEW_MS: '1000' },
    });
    // What one line to or from the runner may hold, twice.
    const part = '0123456789abcdef'.repeat((30 * 1_000_000) / 16);
    roomy.model.script('60 MB', (request) => {
      const { message, ...reply } = turnOf(request) < 1 ? callTool('terminal', { command: 'true' }) : say('');
      return { ...reply, message: { ...message, content: part } };
    });
    const held = hold(say('small'));
    roomy.model.script('small', held.script);
    const ids = Array.from({ length: 7 }, (_, index) => `beside/${index}`);
    for (const id of ids) await roomy.client.submit({ seed: roomy.seed(id, 'small'), activations: [activation(id)] });
    await roomy.client.seed(roomy.seed('60', '60 MB'));
    const result = await roomy.client.activate(activation('60'));
    expect(result).toMatchObject({ class: 'ok', body: { complete: true } });
    const texts = (result.body?.response.output ?? []).flatMap((item) =>
      item.type === 'message' ? [item.content[0]?.text.length] : [],
    );
    expect(texts).toEqual([part.length, part.length]);
    held.release();
    for (const id of ids) expect((await roomy.client.wait(id, 'a')).class).toBe('ok');
    for (const id of [...ids, '60']) expect((await roomy.client.close({ session_id: id })).class).toBe('ok');
    expect(roomy.workers[0]?.output()).not.toContain('"begins":2');
    const status = await readFile(`/proc/${roomy.workers[0]?.process.pid}/status`, 'utf8');
    expect(Number(/VmHWM:\s+(\d+) kB/.exec(status)?.[1])).toBeLessThan(1_000_000);
    await expectNothingLeft(roomy);
  },
  120_000,
);
