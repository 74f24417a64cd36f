import { setTimeout as sleep } from 'node:timers/promises';
import { expect, inject } from 'vitest';
import { startFleet } from '../setup/fleet.ts';
import { expectNothingLeft } from '../setup/leaks.ts';
import { callTool, say, textOf, turns } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

/** Adds its input to a file of the sandbox, and answers with what is in it. */
const notes = turns([
  ({ messages }) =>
    callTool('terminal', {
      command: `echo ${textOf(messages.findLast(({ role }) => role === 'user'))} >> notes; cat notes`,
    }),
  ({ messages }) => say(textOf(messages.at(-1))),
]);

verifies(
  ['session:any-worker', 'session:many-activations', 'result:collect'],
  'seed, two activations and close run on four workers, each killed after its part',
  async () => {
    await using fleet = await startFleet({ redisUrl: inject('redisUrl') });
    fleet.model.script('notes', notes);
    const collect = { commands: [{ name: 'notes', argv: ['cat', 'notes'] }], files: ['notes'] };
    await fleet.client.seed(fleet.seed('wanders', 'notes', { collect }));
    const replaceWorker = async (): Promise<void> => {
      fleet.workers.at(-1)?.process.kill('SIGKILL');
      await fleet.workers.at(-1)?.exited;
      await fleet.addWorker();
    };
    for (const input of ['one', 'two']) {
      await replaceWorker();
      const result = await fleet.client.activate({ session_id: 'wanders', activation_id: input, request: { input } });
      expect(result.class).toBe('ok');
    }
    await replaceWorker();
    const closed = await fleet.client.close({ session_id: 'wanders' });
    expect(closed).toMatchObject({ class: 'ok', body: { sandbox: 'removed', session: { class: 'ok' } } });
    expect(closed.body?.collected?.commands['notes']).toMatchObject({ exit_code: 0, stdout: 'one\ntwo\n' });
    expect(closed.body?.collected?.files[0]).toMatchObject({ text: 'one\ntwo\n', truncated: false });
    expect(closed.body?.observations.records.filter(({ kind }) => kind === 'agent_invocation')).toHaveLength(2);
    await expectNothingLeft(fleet);
  },
);

verifies(
  ['job:ordered', 'job:once'],
  'activations of one session run one at a time and in order, whichever worker runs them',
  async () => {
    await using fleet = await startFleet({ redisUrl: inject('redisUrl'), workers: 3 });
    let running = 0;
    let most = 0;
    const order: string[] = [];
    fleet.model.script('one at a time', async ({ messages }) => {
      most = Math.max(most, ++running);
      order.push(textOf(messages.at(-1)));
      await sleep(5);
      running--;
      return say('done');
    });
    const inputs = Array.from({ length: 30 }, (_, index) => `i${index}`);
    await fleet.client.seed(fleet.seed('ordered', 'one at a time'));
    for (const input of inputs)
      await fleet.client.submit({ activations: [{ session_id: 'ordered', activation_id: input, request: { input } }] });
    for (const input of inputs) expect((await fleet.client.wait('ordered', input)).class).toBe('ok');
    expect(order).toEqual(inputs);
    expect(most).toBe(1);
    await fleet.client.close({ session_id: 'ordered' });
    await expectNothingLeft(fleet);
  },
);
