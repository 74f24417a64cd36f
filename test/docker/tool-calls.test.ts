import { execFileSync } from 'node:child_process';
import { type JournalRecord } from '@hermes-fleet/worker/capture/journal';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { answeredOf, FAMILY_SEED, slowFamily } from '../setup/client-scripts-cancel.ts';
import { journalOf, toolActsOf } from '../setup/client-scripts.ts';
import { callsIn, type HermesFleet, messagesIn, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { callTools, type Completion, say, textOf, turns } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: HermesFleet;

/** Two searches, which Hermes runs at the same time: all of /usr, and one small folder. */
const searches = (ids: readonly [string, string]): Completion =>
  callTools([
    { name: 'search_files', args: { pattern: 'no-such-needle-anywhere', path: '/usr' }, id: ids[0] },
    { name: 'search_files', args: { pattern: 'needle', path: '/workspace' }, id: ids[1] },
  ]);

const needle = { sandbox: { files: [{ path: 'hay.txt', text: 'a needle in it\n' }] } };
const sendsBack = ({ messages }: { readonly messages: readonly { readonly role: string }[] }): Completion =>
  say(
    messages
      .filter(({ role }) => role === 'tool')
      .map((message) => (textOf(message).includes('hay.txt') ? 'found' : 'none'))
      .join(),
  );

/** A reply of the length limit, or one that claims to be whole, with the arguments as they are. */
const asking = (args: unknown, finishReason = 'tool_calls', id = 'call_x'): Completion => ({
  kind: 'completion',
  message: {
    role: 'assistant',
    content: null,
    tool_calls: [{ id, type: 'function', function: { name: 'terminal', arguments: args } }],
  },
  finishReason,
});

const CUT = '{"command": "touch ran; echo cu';
const BROKEN = '{"command": "touch ran", "command" "echo broken"}';

const SESSIONS: readonly Parameters<HermesFleet['begin']>[] = [
  ['reversed', turns([searches(['one', 'two']), sendsBack]), needle],
  ['reversed-same', turns([searches(['call_0', 'call_0']), sendsBack]), needle],
  ['reversed-none', turns([searches(['', '']), sendsBack]), needle],
  [
    'equal',
    turns([
      callTools(['p', 'q'].map((id) => ({ name: 'terminal', args: { command: 'echo x >>n; wc -l <n' }, id }))),
      say('done'),
    ]),
  ],
  ['cut-length', asking(CUT, 'length')],
  ['cut-tool-calls', asking(CUT)],
  ['broken-once', (_, call) => (call === 0 ? asking(BROKEN) : say('recovered'))],
  ['broken-thrice', (_, call) => (call < 3 ? asking(BROKEN, 'tool_calls', `b${call}`) : say('recovered'))],
  ['broken-always', asking(BROKEN), { hermes: { max_turns: 7 } }],
  [
    'broken-beside-good',
    (_, call) =>
      call < 3
        ? callTools([
            { name: 'terminal', args: '{"command":"echo good"}', id: `g${call}` },
            { name: 'terminal', args: BROKEN, id: `b${call}` },
          ])
        : say('recovered'),
  ],
  [
    'no-object',
    turns([asking('[1, 2]'), asking('null', 'tool_calls', 'n'), asking('"ls"', 'tool_calls', 's'), say('ok')]),
  ],
  ['empty', turns([asking(''), say('done')])],
  ['as-object', turns([asking({ command: 'echo object' }), say('done')])],
];

beforeAll(async () => {
  fleet = await startHermesFleet();
  for (const session of SESSIONS) await fleet.begin(...session);
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

/** Tool calls in the order in which they ended. */
const endsIn = ({ events }: JournalRecord): unknown[] =>
  events.filter(({ event }) => event['kind'] === 'tool_end').map(({ event }) => event['call']);

verifies(
  'model:capture',
  'calls at the same time that end in reverse keep their order, each beside its own output, whatever their ids (A18)',
  async () => {
    for (const [name, given] of [
      ['reversed', ['one', 'two']],
      ['reversed-same', ['call_0', 'call_0']],
      ['reversed-none', ['', '']],
    ] as const) {
      const { verdict, items, activation } = await fleet.settle(name);
      expect(verdict, name).toBe('ok');
      const calls = callsIn(items);
      const ids = calls.map(({ call_id: id }) => id);
      const record = await journalOf(fleet, name);
      expect(endsIn(record), name).toEqual(ids.toReversed());
      expect(
        calls.map(({ arguments: args }) => (JSON.parse(args) as { path: string }).path),
        name,
      ).toEqual(['/usr', '/workspace']);
      expect(
        items.slice(0, 4).map((item) => ('call_id' in item ? item.call_id : item.type)),
        name,
      ).toEqual(ids.flatMap((id) => [id, id]));
      expect(new Set(ids).size, name).toBe(2);
      expect(
        outputsIn(items).map((output) => output.includes('hay.txt')),
        name,
      ).toEqual([false, true]);
      // The model is told so too.
      expect(messagesIn(items), name).toEqual(['none,found']);
      // The record has the ids as the server gave them.
      const bodies = record.acts.map(({ outcome }) => record.texts.get(String(outcome?.['body'])) ?? '');
      expect(
        [...bodies.join().matchAll(/"id":"([^"]*)","type":"function"/g)].map(([, id]) => id),
        name,
      ).toEqual(given);
      expect(activation.body?.integrity, name).toBe('captured');
    }
  },
);

test('commands of tools that run at the same time are recorded under the call that they are for', async () => {
  const { close } = await fleet.settle('reversed');
  const { acts, texts } = await journalOf(fleet, 'reversed');
  const ran = acts.filter(({ kind }) => kind === 'tool');
  expect(ran.length).toBeGreaterThan(2);
  for (const { intent } of ran) {
    const isFirst = texts.get(String(intent['text']))?.includes('/usr') === true;
    if (isFirst) expect(intent['who']).toMatchObject({ call: 'one' });
  }
  const observed = close.body?.observations.records.filter((record) => record.kind === 'tool_call') ?? [];
  expect(observed.map(({ status }) => status)).toEqual(['completed', 'completed']);
});

verifies(
  'model:capture',
  'of two equal calls in one message Hermes runs the first, and no output is made up for the second (A18)',
  async () => {
    const { verdict, items, activation } = await fleet.settle('equal');
    expect(verdict).toBe('ok');
    expect(callsIn(items).map(({ call_id: id, status }) => [id, status])).toEqual([
      ['p', 'completed'],
      ['q', 'incomplete'],
    ]);
    expect(outputsIn(items).map((output) => (JSON.parse(output) as { output: string }).output)).toEqual(['1']);
    expect(activation.body?.integrity).toBe('captured');
  },
);

verifies(
  ['result:class', 'model:capture'],
  'arguments that are cut end the agent with their cause, after few calls, in which nothing was run (A19)',
  async () => {
    for (const [name, verdict, most] of [
      ['cut-length', 'incomplete/length', 5],
      ['cut-tool-calls', 'failed/bad_tool_calls', 1],
    ] as const) {
      const rollout = await fleet.settle(name);
      expect(rollout.verdict, name).toBe(verdict);
      expect(fleet.model.callsOf(name).length, name).toBeLessThanOrEqual(most);
      expect(rollout.activation, name).toMatchObject({ reward_valid: true, retryable: false });
      expect(toolActsOf(await journalOf(fleet, name)), name).toEqual([]);
      for (const { arguments: args, status } of callsIn(rollout.items)) {
        expect(args, name).toBe(CUT);
        expect(status, name).toBe('incomplete');
      }
      expect(callsIn(rollout.items).length, name).toBe(fleet.model.callsOf(name).length);
    }
  },
);

verifies(
  ['result:class', 'result:integrity'],
  'arguments that are no JSON are run as nothing, kept as they came, and an agent that recovers is no liar (A19)',
  async () => {
    for (const [name, tries] of [
      ['broken-once', 1],
      ['broken-thrice', 3],
      ['broken-beside-good', 3],
    ] as const) {
      const { verdict, items, activation } = await fleet.settle(name);
      expect(verdict, name).toBe('ok');
      expect(messagesIn(items), name).toEqual(['recovered']);
      const broken = callsIn(items).filter(({ arguments: args }) => args === BROKEN);
      expect(broken.length, name).toBe(tries);
      expect(toolActsOf(await journalOf(fleet, name)), name).toEqual([]);
      expect(activation.body, name).toMatchObject({ integrity: 'captured', integrity_notes: [], complete: true });
    }
    const { items } = await fleet.settle('broken-thrice');
    // The third time the model is told.
    expect(outputsIn(items).map((output) => output.includes('Invalid JSON'))).toEqual([true]);
    expect(callsIn(items).map(({ status }) => status)).toEqual(['incomplete', 'incomplete', 'completed']);
    const always = await fleet.settle('broken-always');
    expect(always.verdict).toBe('incomplete/max_turns');
    // Its turns, and two tries of a summary.
    expect(fleet.model.callsOf('broken-always').length).toBeLessThanOrEqual(9);
  },
);

verifies(
  'result:class',
  'arguments that are no object, none at all, or no text are answered, and reported as they came (A19)',
  async () => {
    for (const [name, given] of [
      ['no-object', ['[1, 2]', 'null', '"ls"']],
      ['empty', ['']],
      ['as-object', ['{"command":"echo object"}']],
    ] as const) {
      const { verdict, items, activation } = await fleet.settle(name);
      expect(verdict, name).toBe('ok');
      expect(
        callsIn(items).map(({ arguments: args }) => args),
        name,
      ).toEqual(given);
      expect(outputsIn(items).length, name).toBe(given.length);
      expect(activation.body, name).toMatchObject({ integrity: 'captured', integrity_notes: [] });
    }
    expect(outputsIn((await fleet.settle('as-object')).items)[0]).toContain('object');
  },
);

verifies(
  ['cancel:signal', 'result:budget'],
  'a cancel while delegated children are at work leaves nothing of them in sandbox or runner, and says that usage is missing (Q09, A24)',
  async () => {
    for (const [name] of SESSIONS) await fleet.settle(name);
    const docker = (...args: string[]): string => execFileSync('docker', args, { encoding: 'utf8' });
    const processesOf = (role: 'sandbox' | 'runner'): string[] => {
      const filters = [`fleet=${fleet.id}`, `role=${role}`].flatMap((label) => [
        '--filter',
        `label=hermes-fleet.${label}`,
      ]);
      const [id = ''] = docker('ps', '-q', ...filters).split('\n');
      return id === '' ? [] : docker('top', id, '-o', 'pid,args').trim().split('\n').slice(1);
    };
    await fleet.client.seed(fleet.seedOf('family', 'family', FAMILY_SEED));
    const idle = { sandbox: processesOf('sandbox'), runner: processesOf('runner') };
    expect([idle.sandbox.length, idle.runner.length]).toEqual([2, 1]);
    fleet.model.script('family', slowFamily);
    const activation = { session_id: 'family', activation_id: 'a', request: { input: 'go' } };
    await fleet.client.submit({ activations: [activation] });
    await expect
      .poll(() => processesOf('sandbox').join(), { timeout: 60_000, interval: 50 })
      .toMatch(/stubborn[^]*echo tick/);
    await expect.poll(() => fleet.model.openCalls.length, { timeout: 20_000, interval: 10 }).toBe(2);
    expect(processesOf('runner').length).toBe(2);
    expect(await fleet.client.cancel({ sessionId: 'family', commandId: 'a' })).toMatchObject({ accepted: true });
    const since = Date.now();
    const result = await fleet.client.wait('family', 'a');
    await expect
      .poll(() => ({ sandbox: processesOf('sandbox'), runner: processesOf('runner') }), { timeout: 5_000 })
      .toEqual(idle);
    const calls = fleet.model.callsOf('family');
    expect(calls.filter(({ receivedAt, abortedAt = 0 }) => Math.max(receivedAt, abortedAt) > since + 1000)).toEqual([]);
    expect(fleet.model.openCalls).toEqual([]);
    const total = { input_tokens: 100 * answeredOf(calls), output_tokens: 10 * answeredOf(calls) };
    expect(result).toMatchObject({
      class: 'cancelled',
      code: 'by_caller',
      body: { complete: false, usage: { complete: false, total } },
    });
    await fleet.client.close({ session_id: 'family' });
  },
);
