import { execFileSync } from 'node:child_process';
import { answerOf, type Session } from '@hermes-fleet/producer';
import type { ActivateInput, ActivationBody, CommandResult } from '@hermes-fleet/shared';
import { afterAll, beforeAll, expect } from 'vitest';
import { type HermesFleet, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { callTool, type ChatMessage, say, type Script, textOf, turnOf, turns } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: HermesFleet;

beforeAll(async () => {
  fleet = await startHermesFleet();
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

type Input = Exclude<ActivateInput['request']['input'], string>;

const user = (content: string) => ({ role: 'user' as const, content });
/** Messages of the nth request of a model, as they arrived. */
const messagesOf = (model: string, call = 0): readonly ChatMessage[] =>
  fleet.model.callsOf(model)[call]?.body?.messages ?? [];
const systemOf = (model: string, call = 0): string => textOf(messagesOf(model, call)[0]);

verifies(
  'hermes:prompt',
  "session prompt, instructions and first system item arrive in that order after Hermes' own prompt, in every request of the activation",
  async () => {
    const { verdict } = await fleet.run(
      'joined',
      turns([callTool('terminal', { command: 'true' }), say('done')]),
      { hermes: { system_prompt: 'SESSION {prompt}' } },
      {
        instructions: 'REQUEST instructions\n with a second line',
        input: [
          user('before'),
          { role: 'system', content: 'FIRST system' },
          { role: 'assistant', content: 'aye' },
          user('go'),
        ],
      },
    );
    expect(verdict).toBe('ok');
    await fleet.run('plain', say('done'));
    const ours = '\n\nSESSION {prompt}\n\nREQUEST instructions\n with a second line\n\nFIRST system\n\n';
    const [own = '', after, ...more] = systemOf('joined').split(ours);
    expect(more).toEqual([]);
    expect(own.length).toBeGreaterThan(1000);
    // Without them it is Hermes' own prompt, in which the model has its name.
    expect(`${own}\n\n${after}`.replaceAll('joined', 'plain')).toBe(systemOf('plain'));
    expect(systemOf('joined', 1)).toBe(systemOf('joined'));
    expect(messagesOf('joined').slice(1)).toEqual([user('before'), { role: 'assistant', content: 'aye' }, user('go')]);
  },
);

verifies(
  ['hermes:prompt', 'hermes:reasoning'],
  'a history of text, reasoning and tool calls arrives as it was, and the last item is the task',
  async () => {
    const input: Input = [
      user('earlier question'),
      { type: 'reasoning', summary: [{ type: 'summary_text', text: ' earlier\nthought ' }] },
      { role: 'assistant', content: 'let me look' },
      { type: 'function_call', call_id: 'old', name: 'terminal', arguments: '{"command":"ls"}' },
      { type: 'function_call_output', call_id: 'old', output: 'file.txt' },
      {
        role: 'assistant',
        content: [
          { type: 'output_text', text: 'there ' },
          { type: 'output_text', text: 'is one 漢🙂' },
        ],
      },
      {
        role: 'user',
        content: [
          { type: 'input_text', text: 'and ' },
          { type: 'input_text', text: 'now?' },
        ],
      },
    ];
    const { verdict, activation } = await fleet.run('history', say('done'), {}, { input, metadata: { row: '17' } });
    expect(verdict).toBe('ok');
    expect(messagesOf('history').slice(1)).toEqual([
      user('earlier question'),
      {
        role: 'assistant',
        content: 'let me look',
        reasoning_content: ' earlier\nthought ',
        tool_calls: [{ id: 'old', type: 'function', function: { name: 'terminal', arguments: '{"command":"ls"}' } }],
      },
      { role: 'tool', tool_call_id: 'old', content: 'file.txt' },
      { role: 'assistant', content: 'there is one 漢🙂' },
      user('and now?'),
    ]);
    // None of it is the model's doing in this activation.
    expect(activation.body?.response).toMatchObject({ metadata: { row: '17' }, output: [{ type: 'message' }] });
    expect(activation.body).toMatchObject({ integrity: 'captured', counts: { turns: 1, tool_calls: 0 } });
  },
);

verifies(
  'hermes:refuse-unsupported',
  'fields that Hermes cannot honour are refused by name before anything runs, and the session goes on',
  async () => {
    fleet.model.script('refusing', say('done'));
    await using session = await fleet.client.open(fleet.seedOf('refusing', 'refusing'));
    const request: ActivateInput['request'] = { input: 'go', tool_choice: 'auto', tools: [], store: false };
    const others: Readonly<Record<string, unknown>> = {
      tool_choice: 'required',
      tools: [{ type: 'function', name: 'f' }],
      previous_response_id: 'resp_1',
      reasoning: { effort: 'high' },
      text: { format: { type: 'json_object' } },
      stream: true,
      background: true,
      some_future_field: 1,
    };
    for (const [name, value] of Object.entries(others))
      await expect(session.activate({ ...request, [name]: value }), name).rejects.toMatchObject({
        code: 'refused/invalid',
        message: expect.stringContaining(name) as string,
      });
    const image = [{ role: 'user', content: [{ type: 'input_image', image_url: 'data:' }] }] as unknown as Input;
    await expect(session.activate({ input: image })).rejects.toThrow(/input\.0\.content\.0\.type/);
    expect(fleet.model.callsOf('refusing')).toHaveLength(0);
    expect((await session.activate(request)).class).toBe('ok');
    expect(fleet.model.callsOf('refusing')).toHaveLength(1);
  },
);

verifies(
  'hermes:refuse-unsupported',
  'a model that is not the one of the session is refused, also when the session is there already',
  async () => {
    fleet.model.script('its-own', say('done'));
    await using session = await fleet.client.open(fleet.seedOf('its-own', 'its-own'));
    await expect(session.activate({ input: 'go', model: 'another' })).rejects.toMatchObject({
      code: 'refused/invalid',
    });
  },
);

const top = ({ seeded }: Session): string =>
  execFileSync('docker', ['top', seeded.body?.sandbox?.id ?? '', '-o', 'pid,args'], { encoding: 'utf8' });

/** Runs the command that is the task, and says what it printed. */
const shell: Script = ({ messages, ...request }) =>
  turnOf({ messages, ...request }) === 0
    ? callTool('terminal', { command: textOf(messages.findLast(({ role }) => role === 'user')) })
    : say(textOf(messages.findLast(({ role }) => role === 'tool')));

const printed = ({ body }: CommandResult<ActivationBody>): unknown =>
  (JSON.parse(outputsIn(body?.response.output ?? [])[0] ?? '{}') as { readonly output?: unknown }).output;

verifies(
  ['session:many-activations', 'hermes:prompt'],
  'each activation finds the sandbox as the one before left it, whatever its end, and is told only what is its own',
  async () => {
    fleet.model.script('several', shell);
    const seed = fleet.seedOf('several', 'several', { hermes: { system_prompt: 'ALWAYS' } });
    await using session = await fleet.client.open(seed);
    const first = await session.activate({
      input: 'echo kept > note; mkdir sub; cd sub; echo x > /etc/of-the-task; (sleep 4321.5 >/dev/null 2>&1 &)',
      instructions: 'ONCE',
    });
    expect(first.class).toBe('ok');
    const look = 'cat note /etc/of-the-task; pwd; pgrep -cfx "sleep 4321.5"';
    const second = await session.activate(look);
    expect(printed(second)).toBe('kept\nx\n/workspace\n1');
    expect(
      fleet.model.callsOf('several').map((_, call) => /ALWAYS\n\n(ONCE)?/.exec(systemOf('several', call))?.[1]),
    ).toEqual(['ONCE', 'ONCE', undefined, undefined]);

    const cut = session.activate('echo cut >> note; sleep 1000', { activationId: 'cut' });
    await expect.poll(() => top(session), { timeout: 30_000, interval: 50 }).toMatch(/^\d+ +sleep 1000$/m);
    expect(await fleet.client.cancel({ sessionId: session.id, commandId: 'cut' })).toMatchObject({ accepted: true });
    expect(await cut).toMatchObject({ class: 'cancelled', code: 'by_caller' });
    const last = await session.activate(`${look}; pgrep -cfx "sleep 1000"`);
    expect(printed(last)).toBe('kept\ncut\nx\n/workspace\n1\n0');
  },
);

verifies(
  ['session:many-activations', 'hermes:prompt'],
  'an activation goes on from the response of an earlier one, as text that is sent back as it came',
  async () => {
    fleet.model.script('goes-on', shell);
    await using session = await fleet.client.open(fleet.seedOf('goes-on', 'goes-on'));
    const first = await session.activate('echo one');
    const history = (first.body?.response.output ?? []) as Input;
    const second = await session.activate({ input: [user('echo one'), ...history, user('echo two')] });
    expect(printed(second)).toBe('two');
    const [earlier, later] = [1, 2].map((call) => messagesOf('goes-on', call));
    const told = (messages: readonly ChatMessage[] = []): unknown[] =>
      messages.map((message) => [message.role, textOf(message), message.tool_calls, message.tool_call_id]);
    // What the first activation told the model, its answer, and the new task.
    const answer = ['assistant', answerOf(first), undefined, undefined];
    expect(told(later)).toEqual([...told(earlier), answer, ['user', 'echo two', undefined, undefined]]);
  },
);

verifies(
  'model:all-clients',
  'an activation with a prefix of its own makes its calls there, and the next one makes them at the prefix of the session',
  async () => {
    fleet.model.script('prefixes', shell);
    await using session = await fleet.client.open(fleet.seedOf('prefixes', 'prefixes'));
    const at = (activationId: string, more: object) =>
      fleet.client.activate({
        session_id: session.id,
        activation_id: activationId,
        request: { input: 'true' },
        ...more,
      });
    await at('one', { base_url: `${fleet.model.url}/ng-rollout/row-7` });
    await at('two', {});
    expect(fleet.model.callsOf('prefixes').map(({ path }) => path)).toEqual([
      ...[1, 2].map(() => '/v1/ng-rollout/row-7/chat/completions'),
      ...[1, 2].map(() => '/v1/chat/completions'),
    ]);
  },
);
