import { afterAll, beforeAll, expect } from 'vitest';
import { callsIn, type HermesFleet, messagesIn, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { callTool, callTools, type Completion, say, sequence, status, textOf, turns } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: HermesFleet;

const answer = (message: Readonly<Record<string, unknown>>, finishReason = 'stop'): Completion => ({
  kind: 'completion',
  message: { role: 'assistant', ...message },
  finishReason,
});
const tool = (command = 'echo worked', id?: string): Completion => callTool('terminal', { command }, id);

/** Begun together: each spends its time waiting. */
const SESSIONS: readonly Parameters<HermesFleet['begin']>[] = [
  ['only-reasoning', answer({ content: null, reasoning_content: 'I think, and say nothing' })],
  ['empty', answer({ content: '' })],
  ['empty-after-tool', sequence([tool(), ...Array.from({ length: 9 }, () => answer({ content: '' }))])],
  ['refusal', answer({ content: null, refusal: 'I will not' })],
  ['filtered', answer({ content: 'half of' }, 'content_filter')],
  ['length', answer({ content: 'and so on ' }, 'length')],
  ['last-400', sequence([tool(), status(400, {}, 'no such parameter')])],
  ['last-500', sequence([tool(), ...Array.from({ length: 5 }, () => status(500))])],
  ['too-long', status(400, {}, 'This model has a maximum context length of 8192 tokens, and you asked for more')],
  [
    'limit-good',
    ({ tools }) => (tools === undefined ? say('what I found so far') : tool()),
    { hermes: { max_turns: 2 } },
  ],
  ['limit-empty', ({ tools }) => (tools === undefined ? say('') : tool()), { hermes: { max_turns: 2 } }],
  ['limit-failing', ({ tools }) => (tools === undefined ? status(500) : tool()), { hermes: { max_turns: 2 } }],
  [
    'cut-arguments',
    answer(
      {
        content: null,
        tool_calls: [{ id: 'c1', type: 'function', function: { name: 'terminal', arguments: '{"command": "echo cu' } }],
      },
      'length',
    ),
  ],
  ['broken-arguments', callTool('terminal', '{"command": "echo bro')],
  [
    'same-ids',
    turns([
      callTools(
        [1, 2, 3].map((n) => ({ name: 'terminal', args: { command: `sleep 0.${4 - n}; echo out${n}` }, id: 'call_0' })),
      ),
      say('done'),
    ]),
  ],
  [
    'no-ids',
    turns([
      callTools(['x', 'y'].map((n) => ({ name: 'terminal', args: { command: `echo out-${n}` }, id: '' }))),
      say('done'),
    ]),
  ],
  [
    'one-id-for-all',
    ({ messages }) => {
      const said = messages.filter(({ role }) => role === 'tool');
      return said.length < 3 ? tool(`echo turn${said.length}`, 'call_0') : say(said.map(textOf).join());
    },
  ],
  [
    'equal-calls',
    turns([callTools(['p', 'q'].map((id) => ({ name: 'terminal', args: { command: 'echo same' }, id }))), say('done')]),
  ],
  [
    'thoughts',
    turns([
      { ...tool(), message: { ...tool('echo one', 'c1').message, reasoning_content: ' first \n thought' } },
      { ...tool(), message: { ...tool('echo two', 'c2').message, reasoning_content: 'second thought' } },
      answer({ content: 'done', reasoning_content: 'third' }),
    ]),
  ],
];

beforeAll(async () => {
  fleet = await startHermesFleet();
  for (const session of SESSIONS) await fleet.begin(...session);
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

verifies(
  'result:class',
  'an agent that ends with reasoning only, or with nothing, has no answer, and none is made up',
  async () => {
    for (const name of ['only-reasoning', 'empty', 'empty-after-tool', 'refusal']) {
      const { verdict, activation, items } = await fleet.settle(name);
      expect(verdict, name).toBe('failed/no_answer');
      expect(activation, name).toMatchObject({ fault: 'agent', retryable: false, reward_valid: true });
      expect(messagesIn(items), name).toEqual([]);
      expect(JSON.stringify(items), name).not.toContain('generation_token_ids');
      expect(fleet.model.callsOf(name).length, name).toBeLessThan(12);
      expect(activation.body?.integrity, name).toBe('captured');
    }
    const { items } = await fleet.settle('only-reasoning');
    expect(new Set(items.map((item) => (item.type === 'reasoning' ? item.summary[0]?.text : item.type)))).toEqual(
      new Set(['I think, and say nothing']),
    );
    expect(outputsIn((await fleet.settle('empty-after-tool')).items)).toHaveLength(1);
  },
);

verifies(
  'result:class',
  'an answer that is filtered or cut at its length ends as what it is, with what the model said',
  async () => {
    const filtered = await fleet.settle('filtered');
    expect(filtered.verdict).toBe('failed/content_filter');
    expect(new Set(messagesIn(filtered.items))).toEqual(new Set(['half of']));
    const length = await fleet.settle('length');
    expect(length.verdict).toBe('incomplete/length');
    expect(length.activation.body?.response.incomplete_details).toEqual({ reason: 'length' });
    expect(new Set(messagesIn(length.items))).toEqual(new Set(['and so on ']));
    expect(fleet.model.callsOf('length').length).toBeLessThan(8);
  },
);

verifies('result:class', 'an error of the Model Server on the last turn keeps the turns before it', async () => {
  const refused = await fleet.settle('last-400');
  expect(refused.verdict).toBe('infra/model_bad_reply');
  expect(refused.activation.body?.message).toContain('no such parameter');
  const broken = await fleet.settle('last-500');
  expect(broken.verdict).toBe('infra/model_unreachable');
  for (const { activation, items } of [refused, broken]) {
    expect(activation).toMatchObject({
      retryable: true,
      reward_valid: false,
      body: { counts: { turns: 1, tool_calls: 1 } },
    });
    expect(outputsIn(items)[0]).toContain('worked');
    expect(messagesIn(items)).toEqual([]);
  }
  expect(fleet.model.callsOf('last-400')).toHaveLength(2);
  expect(fleet.model.callsOf('last-500')).toHaveLength(6);
});

verifies('result:class', 'a context that stays too long ends the agent as its own doing', async () => {
  const { verdict, items } = await fleet.settle('too-long');
  expect(verdict).toBe('failed/context_exceeded');
  expect(items).toEqual([]);
  expect(fleet.model.callsOf('too-long').length).toBeLessThan(8);
});

verifies(
  ['result:class', 'model:whole'],
  'the turn limit is an incomplete end whatever becomes of the summary, which is there only if the model wrote it',
  async () => {
    const [good, empty, failing] = await Promise.all(
      ['limit-good', 'limit-empty', 'limit-failing'].map((name) => fleet.settle(name)),
    );
    for (const rollout of [good, empty, failing]) {
      expect(rollout?.verdict).toBe('incomplete/max_turns');
      expect(rollout?.activation.body?.counts.turns).toBe(2);
      expect(rollout?.activation).toMatchObject({ fault: 'limit', reward_valid: true });
      expect(outputsIn(rollout?.items ?? [])).toHaveLength(2);
    }
    expect(messagesIn(good?.items ?? [])).toEqual(['what I found so far']);
    expect(messagesIn(empty?.items ?? [])).toEqual([]);
    expect(messagesIn(failing?.items ?? [])).toEqual([]);
  },
);

verifies(
  'result:class',
  'tool arguments that are cut or broken are kept as they came, and end with a cause after few calls',
  async () => {
    const cut = await fleet.settle('cut-arguments');
    expect(cut.verdict).toBe('incomplete/length');
    expect(callsIn(cut.items)[0]?.arguments).toBe('{"command": "echo cu');
    const broken = await fleet.settle('broken-arguments');
    expect(broken.verdict).toMatch(/^(failed\/bad_tool_calls|incomplete\/\w+)$/);
    expect(callsIn(broken.items)[0]?.arguments).toBe('{"command": "echo bro');
    for (const name of ['cut-arguments', 'broken-arguments'])
      expect(fleet.model.callsOf(name).length, name).toBeLessThan(15);
  },
);

verifies(
  'model:capture',
  'equal, repeated and missing call ids are told apart in the response, each output beside its call',
  async () => {
    const same = await fleet.settle('same-ids');
    expect(same.verdict).toBe('ok');
    const ids = callsIn(same.items).map(({ call_id: id }) => id);
    expect(new Set(ids).size).toBe(3);
    expect(same.items.filter(({ type }) => type.startsWith('function')).map(({ type }) => type)).toEqual(
      [1, 2, 3].flatMap(() => ['function_call', 'function_call_output']),
    );
    expect(outputsIn(same.items).map((output) => /out\d/.exec(output)?.[0])).toEqual(['out1', 'out2', 'out3']);
    const none = await fleet.settle('no-ids');
    expect(new Set(callsIn(none.items).map(({ call_id: id }) => id)).size).toBe(2);
    expect(outputsIn(none.items).map((output) => /out-\w/.exec(output)?.[0])).toEqual(['out-x', 'out-y']);
    const perTurn = await fleet.settle('one-id-for-all');
    expect(new Set(callsIn(perTurn.items).map(({ call_id: id }) => id)).size).toBe(3);
    // The model is shown all three: Hermes leaves out what has an id that it has seen.
    expect(messagesIn(perTurn.items)[0]).toMatch(/turn0[^]*turn1[^]*turn2/);
    expect(perTurn.activation.body?.counts.turns).toBe(4);
    const equal = await fleet.settle('equal-calls');
    expect(callsIn(equal.items).map(({ call_id: id }) => id)).toEqual(['p', 'q']);
  },
);

verifies('model:capture', 'reasoning stands before its message, and is sent back as it was', async () => {
  const { verdict, items } = await fleet.settle('thoughts');
  expect(verdict).toBe('ok');
  expect(items.map(({ type }) => type)).toEqual([
    'reasoning',
    'function_call',
    'function_call_output',
    'reasoning',
    'function_call',
    'function_call_output',
    'reasoning',
    'message',
  ]);
  const last = fleet.model.callsOf('thoughts').at(-1)?.body?.messages ?? [];
  expect(last.filter(({ role }) => role === 'assistant').map((message) => message.reasoning_content)).toEqual([
    ' first \n thought',
    'second thought',
  ]);
});
