import { randomBytes } from 'node:crypto';
import { FleetClient } from '@hermes-fleet/producer';
import { expect, inject, test } from 'vitest';
import { cancelCommand } from '@hermes-fleet/producer/internal/commands/cancel';
import { resultsCommand } from '@hermes-fleet/producer/internal/commands/results';
import { statusCommand } from '@hermes-fleet/producer/internal/commands/status';
import { invoke } from '../setup/invoke.ts';

const fleet = () => ({ redisUrl: inject('redisUrl'), fleetId: `t${randomBytes(4).toString('hex')}` });

async function submitWaiting(client: FleetClient, sessionId: string, sweepId?: string): Promise<void> {
  await client.submit({
    seed: {
      session_id: sessionId,
      sandbox: { provider: 'stub', image: 'x' },
      model: { base_url: 'http://127.0.0.1:1', name: 'm' },
      ...(sweepId === undefined ? {} : { identity: { sweep_id: sweepId } }),
    },
    activations: [{ session_id: sessionId, activation_id: 'a', request: { input: 'x' } }],
  });
}

test('status says why a session waits, cancel ends it, and results print how', async () => {
  const at = fleet();
  await using client = await FleetClient.connect(at);
  const sessionId = 'set::waiting one';
  await submitWaiting(client, sessionId);
  const shown = await invoke(statusCommand, [sessionId], at);
  expect(shown).toMatchObject({ status: 0, stdout: expect.stringContaining('waits for a worker: none is alive') });
  expect(await invoke(cancelCommand, [sessionId, 'a', '--json'], at)).toMatchObject({
    stdout: '{"accepted":true}\n',
  });
  expect(await invoke(cancelCommand, [sessionId], at)).toMatchObject({ status: 0, stdout: 'cancelled\n' });
  const { stdout } = await invoke(statusCommand, [sessionId, '--json'], at);
  expect(JSON.parse(stdout)).toMatchObject({ session_id: sessionId, state: 'closed' });

  const reader = ['--group', 'g', '--consumer', 'c'];
  const unread = await invoke(resultsCommand, [...reader, '--no-ack'], at);
  const read = await invoke(resultsCommand, reader, at);
  expect(read.stdout).toBe(unread.stdout);
  const lines = read.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as { session_id: string; command_id: string; class: string });
  expect(lines.map((line) => [line.session_id, line.command_id, line.class])).toEqual([
    [sessionId, 'a', 'cancelled'],
    [sessionId, 'seed', 'cancelled'],
    [sessionId, 'close', 'ok'],
  ]);
  expect((await invoke(resultsCommand, reader, at)).stdout).toBe('');
});

test('cancelling a sweep ends its sessions and refuses those that are still to come', async () => {
  const at = fleet();
  await using client = await FleetClient.connect(at);
  await submitWaiting(client, 'one', 'nightly');
  expect((await invoke(cancelCommand, ['--sweep', 'nightly'], at)).status).toBe(0);
  expect((await client.status('one')).state).toBe('closed');
  await expect(submitWaiting(client, 'two', 'nightly')).rejects.toMatchObject({ code: 'refused/session_closed' });
});

test('results are followed until the signal comes', async () => {
  const at = fleet();
  await using client = await FleetClient.connect(at);
  const stop = new AbortController();
  const printed: string[] = [];
  const following = invoke(resultsCommand, ['--follow'], {
    ...at,
    signal: stop.signal,
    onOutput: (line) => printed.push(line),
  });
  await submitWaiting(client, 'one');
  await client.cancel({ sessionId: 'one' });
  await expect.poll(() => printed.length, { timeout: 10_000 }).toBe(3);
  stop.abort();
  expect(await following).toMatchObject({ status: 0 });
});

test('a session that nobody knows is an error of the caller', async () => {
  expect(await invoke(statusCommand, ['nobody'], fleet())).toMatchObject({ status: 64 });
  expect(await invoke(cancelCommand, ['nobody', 'a', '--sweep', 's'], fleet())).toMatchObject({ status: 64 });
});
