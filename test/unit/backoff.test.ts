import { Backoff } from '@hermes-fleet/worker/capture/backoff';
import { expect, test } from 'vitest';

const TIMES = { firstMs: 1, longestMs: 5, longestAskedMs: 200 };
const never = new AbortController().signal;

test('a server is left alone for as long as it asks, by every call to it, and by no other', async () => {
  const backoff = new Backoff(TIMES);
  const begun = performance.now();
  const waits = backoff.wait('one', 1, 150, never);
  expect(backoff.left('one')).toBeGreaterThan(100);
  expect(backoff.left('other')).toBe(0);
  await backoff.ready('one', never);
  expect(performance.now() - begun).toBeGreaterThanOrEqual(149);
  expect(await waits).toBe(true);
});

test('a server that asks for more patience than there is is not waited for, by anybody', async () => {
  const backoff = new Backoff(TIMES);
  // A day; and more than a timer can hold.
  for (const asked of [86_400_000, 9_999_999_000]) expect(await backoff.wait('one', 1, asked, never)).toBe(false);
  expect(backoff.left('one')).toBe(0);
});

test('a pause ends with the signal, and with its reason', async () => {
  const reason = new Error('over');
  await expect(new Backoff(TIMES).wait('one', 1, 100, AbortSignal.abort(reason))).rejects.toMatchObject({
    cause: reason,
  });
});
