import { afterAll, beforeAll, expect } from 'vitest';
import {
  callsIn,
  type HermesFleet,
  messagesIn,
  outputsIn,
  type Rollout,
  startHermesFleet,
} from '../setup/hermes-fleet.ts';
import { callTool, type Completion, say, type Script, silence, textOf, turnOf } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: HermesFleet;

const usage = { prompt_tokens: 100, completion_tokens: 10, total_tokens: 110 };
const work = (): Completion => ({ ...callTool('terminal', { command: 'echo worked' }), usage });
const workThen =
  (turns: number, last: Script): Script =>
  (request, call) =>
    turnOf(request) < turns ? work() : last(request, call);

/** A root that delegates at once to two children, which do as `child` says; then it answers. */
const family =
  (child: Script): Script =>
  (request, call) => {
    if (textOf(request.messages.find(({ role }) => role === 'user')).includes('CHILD')) return child(request, call);
    return turnOf(request) > 0
      ? { ...say('the root went on'), usage }
      : { ...callTool('delegate_task', { tasks: [{ goal: 'CHILD one' }, { goal: 'CHILD two' }] }), usage };
  };
const delegation = { toolsets: ['terminal', 'delegation'] };

const SUMMARY_TOKENS = 1_000_000;
/** Fills the window until Hermes has it summarised, which is an auxiliary call, and a dear one. */
const filling: Script = ({ tools, messages }) => {
  if (tools === undefined)
    return {
      ...say('SUMMARY of what was done'),
      usage: { prompt_tokens: SUMMARY_TOKENS, completion_tokens: 10, total_tokens: SUMMARY_TOKENS + 10 },
    };
  const tokens = 20_000 + 8_000 * messages.filter(({ role }) => role === 'tool').length;
  return {
    ...callTool('terminal', { command: 'seq 1 400' }),
    usage: { prompt_tokens: tokens, completion_tokens: 10, total_tokens: tokens + 10 },
  };
};

const atLimit =
  (summary: Script): Script =>
  (request, call) =>
    request.tools === undefined ? summary(request, call) : work();

const SESSIONS: readonly Parameters<HermesFleet['begin']>[] = [
  ['summary-calls-tools', work, { hermes: { max_turns: 2 } }],
  ['summary-without-budget', work, { hermes: { max_turns: 2 }, budgets: { max_model_calls: 2 } }],
  [
    'summary-over-tokens',
    atLimit(() => ({ ...say('what I fou'), finishReason: 'length', usage })),
    { hermes: { max_turns: 2 } },
  ],
  ['summary-hangs', atLimit(silence), { hermes: { max_turns: 2 }, timeouts: { activation_s: 10 } }],
  ['answer-with-last-call', workThen(2, () => say('in time')), { budgets: { max_model_calls: 3 } }],
  ['answer-over-tokens', workThen(2, () => ({ ...say('in time'), usage })), { budgets: { max_total_tokens: 230 } }],
  ['family-input', family(work), { budgets: { max_input_tokens: 450 }, hermes: delegation }],
  ['family-output', family(work), { budgets: { max_output_tokens: 45 }, hermes: delegation }],
  ['family-total', family(work), { budgets: { max_total_tokens: 500 }, hermes: delegation }],
  ['family-wall', family(workThen(1, silence)), { timeouts: { activation_s: 10 }, hermes: delegation }],
  ['family-idle', family(workThen(1, silence)), { budgets: { idle_time_s: 5 }, hermes: delegation }],
  ['child-turns', family(work), { hermes: { ...delegation, delegation: { max_turns: 2 } } }],
  [
    'auxiliary',
    filling,
    { budgets: { max_total_tokens: SUMMARY_TOKENS }, hermes: { compaction: true, context_length: 64_000 } },
  ],
];

beforeAll(async () => {
  fleet = await startHermesFleet();
  for (const session of SESSIONS) await fleet.begin(...session);
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

/** One incomplete end with its code, and nothing that the model did not say. */
async function incomplete(name: string, code: string, said: readonly string[] = []): Promise<Rollout> {
  const rollout = await fleet.settle(name);
  const { verdict, activation, close, items } = rollout;
  expect(verdict, name).toBe(`incomplete/${code}`);
  expect(activation, name).toMatchObject({ fault: 'limit', retryable: false, reward_valid: true });
  expect(activation.body?.response, name).toMatchObject({
    status: 'incomplete',
    incomplete_details: { reason: code },
    error: null,
  });
  expect(messagesIn(items), name).toEqual(said);
  expect(close.body?.session, name).toEqual({ class: 'incomplete', code });
  return rollout;
}

const agentsOf = ({ close }: Rollout): string[] =>
  (close.body?.observations.records ?? []).flatMap((record) =>
    record.kind === 'agent_invocation' ? [`${record.invocation_id} ${record.status}`] : [],
  );

verifies(
  'result:budget',
  'at the turn limit a summary that calls tools, is cut, hangs or has no budget left is no answer, and the limit is the end (A09)',
  async () => {
    const tools = await incomplete('summary-calls-tools', 'max_turns');
    expect(tools.activation.body?.counts.turns).toBe(2);
    const broke = await incomplete('summary-without-budget', 'max_model_calls');
    expect(fleet.model.callsOf('summary-without-budget')).toHaveLength(2);
    expect(outputsIn(broke.items)).toHaveLength(2);
    const cut = await incomplete('summary-over-tokens', 'max_turns', ['what I fou']);
    expect(cut.activation.body?.counts).toMatchObject({ turns: 2 });
    const hung = await incomplete('summary-hangs', 'wall_time');
    expect(hung.activation.body?.counts).toMatchObject({ turns: 2, tool_calls: 2 });
    expect(hung.activation.body?.usage.complete).toBe(false);
  },
);

verifies(
  'result:budget',
  'an answer that comes with the last call, or goes beyond the tokens, is an answer',
  async () => {
    for (const name of ['answer-with-last-call', 'answer-over-tokens']) {
      const { verdict, activation, items } = await fleet.settle(name);
      expect(verdict, name).toBe('ok');
      expect(messagesIn(items), name).toEqual(['in time']);
      expect(activation.body?.response.status, name).toBe('completed');
      expect(fleet.model.callsOf(name), name).toHaveLength(3);
    }
  },
);

verifies(
  'result:budget',
  'tokens of root and children are one budget, whichever of its limits is used up',
  async () => {
    for (const [name, code] of [
      ['family-input', 'max_input_tokens'],
      ['family-output', 'max_output_tokens'],
      ['family-total', 'max_total_tokens'],
    ] as const) {
      const { activation, items } = await incomplete(name, code);
      // Five calls use up each of them; one more may be on its way when that is seen.
      expect([5, 6], name).toContain(fleet.model.callsOf(name).length);
      expect(activation.body?.usage.root.total_tokens, name).toBe(110);
      expect(activation.body?.usage.others.total_tokens, name).toBeGreaterThanOrEqual(4 * 110);
      expect(activation.body?.counts.agents, name).toBe(3);
      expect(callsIn(items), name).toMatchObject([{ name: 'delegate_task', status: 'incomplete' }]);
      expect(outputsIn(items), name).toEqual([]);
    }
  },
);

verifies('result:budget', 'the time limits end children that wait for the model, with what they had done', async () => {
  for (const [name, code] of [
    ['family-wall', 'wall_time'],
    ['family-idle', 'idle_time'],
  ] as const) {
    const rollout = await incomplete(name, code);
    expect(rollout.activation.body?.usage).toMatchObject({
      complete: false,
      root: { total_tokens: 110 },
      others: { total_tokens: 220 },
    });
    const done = rollout.close.body?.observations.records.filter(
      (record) => record.kind === 'tool_call' && record.tool_name === 'terminal' && record.status === 'completed',
    );
    expect(done, name).toHaveLength(2);
  }
  await expect.poll(() => fleet.model.openCalls.length).toBe(0);
});

verifies('result:budget', 'the turn limit of a child ends the child, and its root goes on', async () => {
  const rollout = await fleet.settle('child-turns');
  expect(rollout.verdict).toBe('ok');
  expect(messagesIn(rollout.items)).toEqual(['the root went on']);
  expect(rollout.activation.body?.counts).toMatchObject({ turns: 2, agents: 3 });
  expect(agentsOf(rollout).toSorted()).toEqual(['a:a0 completed', 'a:a1 incomplete', 'a:a2 incomplete']);
});

verifies('result:budget', 'what an auxiliary call costs comes out of the same budget', async () => {
  const { activation, items } = await incomplete('auxiliary', 'max_total_tokens');
  expect(activation.body?.usage.others.total_tokens).toBeGreaterThanOrEqual(SUMMARY_TOKENS);
  expect(activation.body?.usage.root.total_tokens).toBeLessThan(SUMMARY_TOKENS / 2);
  expect(fleet.model.callsOf('auxiliary').at(-1)?.body?.tools).toBeUndefined();
  expect(outputsIn(items).length).toBeGreaterThan(2);
});

verifies(
  'result:budget',
  'a tool that was asked for in place of a summary was not run, and has no output',
  async () => {
    const { items, close } = await fleet.settle('summary-calls-tools');
    const ran = close.body?.observations.records.filter(
      (record) => record.kind === 'tool_call' && record.status === 'completed',
    );
    expect(ran).toHaveLength(2);
    expect(callsIn(items).map(({ status: state }) => state)).toEqual([
      'completed',
      'completed',
      'incomplete',
      'incomplete',
    ]);
    expect(outputsIn(items)).toHaveLength(2);
  },
);
