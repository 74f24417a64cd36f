import { afterAll, beforeAll, expect } from 'vitest';
import { type HermesFleet, messagesIn, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { callTool, callTools, type Script, say, silence, textOf, turnOf } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: HermesFleet;

const busy: Script = (request) =>
  request.tools === undefined
    ? say('a summary that nobody asked for')
    : {
        ...callTool('terminal', { command: 'echo worked' }),
        usage: { prompt_tokens: 100, completion_tokens: 10, total_tokens: 110 },
      };

/** A root that delegates at once, and children that work on. */
const family: Script = (request, call) =>
  textOf(request.messages.find(({ role }) => role === 'user')).includes('CHILD') || turnOf(request) > 0
    ? busy(request, call)
    : callTool('delegate_task', { tasks: [{ goal: 'CHILD one' }, { goal: 'CHILD two' }] });

const SESSIONS: readonly Parameters<HermesFleet['begin']>[] = [
  ['calls', busy, { budgets: { max_model_calls: 3 } }],
  ['input', busy, { budgets: { max_input_tokens: 250 } }],
  ['output', busy, { budgets: { max_output_tokens: 25 } }],
  ['total', busy, { budgets: { max_total_tokens: 300 } }],
  ['request-output', busy, { budgets: { max_output_tokens: 1000 } }, { max_output_tokens: 15 }],
  [
    'cut-by-budget',
    {
      ...say('as far as it we'),
      finishReason: 'length',
      usage: { prompt_tokens: 100, completion_tokens: 40, total_tokens: 140 },
    },
    { budgets: { max_output_tokens: 40 } },
  ],
  [
    'wall',
    (request, call) => (turnOf(request) < 2 ? busy(request, call) : silence()),
    { timeouts: { activation_s: 8 } },
  ],
  [
    'wall-in-tool',
    (request, call) =>
      turnOf(request) < 1
        ? busy(request, call)
        : callTool('terminal', { command: "echo begun; sh -c 'setsid sleep 1234.5 & sleep 1234.5'" }),
    { timeouts: { activation_s: 8 } },
  ],
  ['idle', (request, call) => (turnOf(request) < 2 ? busy(request, call) : silence()), { budgets: { idle_time_s: 3 } }],
  ['family', family, { budgets: { max_model_calls: 6 }, hermes: { toolsets: ['terminal', 'delegation'] } }],
  [
    'tool-limit',
    (request) =>
      turnOf(request) === 0
        ? callTools([
            { name: 'terminal', args: { command: 'echo before; sleep 1234.6' } },
            { name: 'terminal', args: { command: 'echo other' } },
          ])
        : say('went on'),
    { timeouts: { tool_s: 2 } },
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
  'result:budget',
  'each used-up budget ends the agent as incomplete, with all items so far and no more calls',
  async () => {
    const ends = [
      ['calls', 'incomplete/max_model_calls', 3],
      ['input', 'incomplete/max_input_tokens', 3],
      ['output', 'incomplete/max_output_tokens', 3],
      ['total', 'incomplete/max_total_tokens', 3],
      ['request-output', 'incomplete/max_output_tokens', 2],
    ] as const;
    for (const [name, code, calls] of ends) {
      const { verdict, activation, items } = await fleet.settle(name);
      expect(verdict, name).toBe(code);
      expect(activation, name).toMatchObject({ fault: 'limit', retryable: false, reward_valid: true });
      expect(fleet.model.callsOf(name).length, name).toBe(calls);
      expect(activation.body?.response, name).toMatchObject({
        status: 'incomplete',
        incomplete_details: { reason: code.split('/')[1] },
      });
      expect(outputsIn(items).length, name).toBe(calls);
      expect(messagesIn(items), name).toEqual([]);
      expect(activation.body?.counts.turns, name).toBe(calls);
    }
  },
);

verifies(
  'result:budget',
  'the tokens of a call are lowered to what is left, and a call that is cut there is the end of the budget',
  async () => {
    const asked = fleet.model.callsOf('output').map(({ body }) => body?.['max_tokens']);
    expect(asked).toEqual([25, 15, 5]);
    const { verdict, items } = await fleet.settle('cut-by-budget');
    expect(verdict).toBe('incomplete/max_output_tokens');
    expect(messagesIn(items)).toEqual(['as far as it we']);
    expect(fleet.model.callsOf('cut-by-budget')).toHaveLength(1);
  },
);

verifies('result:budget', 'root and children draw from one budget', async () => {
  const { verdict, activation } = await fleet.settle('family');
  expect(verdict).toBe('incomplete/max_model_calls');
  // The sixth may be on its way when the seventh is asked for, which ends the run.
  expect([5, 6]).toContain(fleet.model.callsOf('family').length);
  expect(activation.body?.counts.agents).toBe(3);
  expect(activation.body?.usage.others.total_tokens).toBeGreaterThanOrEqual(3 * 110);
});

verifies(
  'result:budget',
  'a time that is over ends a model call that hangs and a command that runs on, keeping what was there',
  async () => {
    for (const [name, code, outputs] of [
      ['wall', 'incomplete/wall_time', 2],
      ['idle', 'incomplete/idle_time', 2],
      ['wall-in-tool', 'incomplete/wall_time', 1],
    ] as const) {
      const { verdict, activation, items } = await fleet.settle(name);
      expect(verdict, name).toBe(code);
      expect(outputsIn(items).filter((output) => output.includes('worked')).length, name).toBe(outputs);
      expect(activation.body?.usage.total.input_tokens, name).toBeGreaterThanOrEqual(100 * outputs);
    }
    const { activation } = await fleet.settle('wall');
    expect(activation.body?.usage.complete).toBe(false);
    await expect.poll(() => fleet.model.openCalls.length).toBe(0);
  },
);

verifies('result:budget', 'a command over its own time is an error to the model, and the agent goes on', async () => {
  const { verdict, items } = await fleet.settle('tool-limit');
  expect(verdict).toBe('ok');
  expect(messagesIn(items)).toEqual(['went on']);
  expect(outputsIn(items)[0]).toMatch(/before[^]*timed out/i);
  expect(outputsIn(items)[1]).toContain('other');
});
