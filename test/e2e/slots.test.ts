import { expect, inject } from 'vitest';
import { startFleet } from '../setup/fleet.ts';
import { expectNothingLeft } from '../setup/leaks.ts';
import { hold, say } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

verifies('job:slots', 'every free slot is used, however long the activations of earlier sessions take', async () => {
  const [slots, starts] = [8, 2];
  const env = { FLEET_SLOTS: String(slots), FLEET_SANDBOX_STARTS: String(starts) };
  await using fleet = await startFleet({ redisUrl: inject('redisUrl'), env });
  const held = hold(say('done'));
  fleet.model.script('long', held.script);
  const ids = Array.from({ length: slots + 1 }, (_, index) => `long/${index}`);
  const activation = (id: string) => ({ session_id: id, activation_id: 'a', request: { input: 'hi' } });
  for (const id of ids) await fleet.client.submit({ seed: fleet.seed(id, 'long'), activations: [activation(id)] });
  await expect.poll(() => fleet.model.callsOf('long').length, { timeout: 15_000 }).toBe(slots);
  // A slot that is freed by a close goes to the one that waits, while the others run on.
  const running = await Promise.all(ids.map(async (id) => ({ id, ...(await fleet.client.status(id)) })));
  await fleet.client.close({ session_id: running.find(({ state }) => state === 'active')?.id ?? '' });
  await expect.poll(() => fleet.model.callsOf('long').length, { timeout: 15_000 }).toBe(slots + 1);
  held.release();
  await Promise.all(ids.map(async (id) => await fleet.client.close({ session_id: id })));
  await expectNothingLeft(fleet);
});
