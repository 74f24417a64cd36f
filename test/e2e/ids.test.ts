import { existsSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { answerOf } from '@hermes-fleet/producer';
import type { ActivationBody, CommandResult } from '@hermes-fleet/shared';
import { afterAll, afterEach, beforeAll, expect, inject } from 'vitest';
import { startFleet, type TestFleet } from '../setup/fleet.ts';
import { expectNothingLeft } from '../setup/leaks.ts';
import { callTool, say, textOf, turns } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: TestFleet;
beforeAll(async () => {
  fleet = await startFleet({ redisUrl: inject('redisUrl'), workers: 2, env: { FLEET_SLOTS: '40' } });
});
afterEach(async () => await expectNothingLeft(fleet));
afterAll(async () => await fleet[Symbol.asyncDispose]());

const LONG = 'x'.repeat(299);
/** Ids that BullMQ, Docker, a path or a glob would refuse or fold into another one. */
const ODD = [
  '17',
  '0',
  '0:1',
  'run:17',
  'a:b:c',
  'a:b',
  'a_b',
  'a/b',
  'A',
  'a',
  '.',
  '..',
  '../../x',
  '/etc/passwd',
  'é漢',
  '🦀',
  ' ',
  'seed',
  'close',
  '{hf:1}',
  '*',
  '%2e%2e',
  'a\nb',
  'a\0b',
  "'; rm -rf /; '",
  '__proto__',
  `${LONG}1`,
  `${LONG}2`,
  'y'.repeat(512),
];

verifies(
  ['session:any-worker', 'result:class'],
  'any text is a session of its own, and comes back as it was given',
  async () => {
    fleet.model.script(
      'writes its id',
      turns([
        ({ messages }) => callTool('terminal', { command: `printf %s ${textOf(messages[0])} >> id; cat id` }),
        ({ messages }) => say(textOf(messages.at(-1))),
      ]),
    );
    const before = await readdir(path.dirname(fleet.root));
    await Promise.all(
      ODD.map(async (id) => {
        const hex = Buffer.from(id).toString('hex');
        await fleet.client.submit({
          seed: fleet.seed(id, 'writes its id', { reply_to: 'odd' }),
          activations: [{ session_id: id, activation_id: 'a', request: { input: hex } }],
          close: { session_id: id, when: 'idle' },
        });
        const result = await fleet.client.wait(id, 'a');
        expect(result).toMatchObject({ session_id: id, class: 'ok' });
        expect(answerOf(result as CommandResult<ActivationBody>)).toBe(`{"output":"${hex}","exit_code":0}`);
        expect((await fleet.client.wait(id, 'close')).class).toBe('ok');
      }),
    );
    const streamed: string[] = [];
    for await (const entry of fleet.client.results({ group: 'g', replyTo: 'odd' })) {
      if (entry.result.kind === 'close') streamed.push(entry.result.session_id);
      await entry.ack();
      if (streamed.length === ODD.length) break;
    }
    expect(streamed.toSorted()).toEqual([...ODD].toSorted());
    const escaped = (await readdir(path.dirname(fleet.root))).filter((name) => name === 'x' && !before.includes(name));
    expect(escaped).toEqual([]);
    expect(existsSync(path.join(fleet.root, '..', '..', 'x'))).toBe(false);
  },
);

verifies(
  'result:class',
  'ids that are none are refused with a sentence that names the field and its bound',
  async () => {
    const refused = async (id: string, words: RegExp): Promise<void> =>
      await expect(fleet.client.seed(fleet.seed(id))).rejects.toMatchObject({
        code: 'refused/invalid',
        message: expect.stringMatching(words) as string,
      });
    await refused('', /session_id.*must not be empty|must not be empty.*session_id/s);
    await refused('é'.repeat(257), /512 bytes.*session_id|session_id.*512 bytes/s);
    await refused('half \ud800', /well-formed.*session_id|session_id.*well-formed/s);
    for (const activationId of ['', 'seed', 'close', 'close.2', 'a b', 'x'.repeat(129)]) {
      const body = { session_id: 's', activation_id: activationId, request: { input: 'hi' } };
      await expect(fleet.client.activate(body)).rejects.toMatchObject({
        code: 'refused/invalid',
        message: expect.stringContaining('activation_id') as string,
      });
    }
  },
);
