import { rm } from 'node:fs/promises';
import type { OutputItem } from '@hermes-fleet/shared';
import { afterAll, beforeAll, expect } from 'vitest';
import { PROBED, PROBING_RUNNER, runnerPython } from '../setup/client-scripts-probe.ts';
import {
  expectAllRecorded,
  fillingScript,
  journalOf,
  meeting,
  modelCallsIn,
  type RecordedCall,
  taskOf,
  toolActsOf,
} from '../setup/client-scripts.ts';
import { callsIn, type HermesFleet, messagesIn, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import {
  callTool,
  callTools,
  type Completion,
  say,
  type Script,
  textOf,
  turnOf,
  turns,
} from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: HermesFleet;

beforeAll(async () => {
  fleet = await startHermesFleet();
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

verifies(
  ['model:all-clients', 'model:capture'],
  'two delegations in one message, of two children at the same time and of one, are three agents, each known by the call that made it',
  async () => {
    const pair = meeting(['CHILD-1', 'CHILD-2']);
    const madeBy = { 'CHILD-1': 'call_pair', 'CHILD-2': 'call_pair', 'CHILD-3': 'call_one' };
    const met: boolean[] = [];
    const script: Script = async (request) => {
      const child = /CHILD-\d/.exec(taskOf(request))?.[0];
      if (child === undefined)
        return turnOf(request) === 0
          ? callTools([
              { name: 'delegate_task', args: { tasks: [{ goal: 'CHILD-1' }, { goal: 'CHILD-2' }] }, id: 'call_pair' },
              { name: 'delegate_task', args: { goal: 'CHILD-3' }, id: 'call_one' },
            ])
          : say('all are done');
      if (turnOf(request) > 0) return say(`${child} is done`);
      if (child !== 'CHILD-3') met.push(await pair.arrive(child));
      return callTool('terminal', { command: `echo ${child}` }, `inner_${child}`);
    };
    const { verdict, items, activation } = await fleet.run('family', script, {
      hermes: { toolsets: ['terminal', 'delegation'] },
    });
    expect(verdict).toBe('ok');
    expect(met).toEqual([true, true]);
    expect(activation.body).toMatchObject({ integrity: 'captured', counts: { agents: 4, model_calls: 8, turns: 2 } });
    expect(outputsIn(items)[0]).toMatch(/CHILD-1 is done[^]*CHILD-2 is done/);
    expect(outputsIn(items)[1]).toContain('CHILD-3 is done');
    const record = await journalOf(fleet, 'family');
    const calls = modelCallsIn(record);
    expectAllRecorded(fleet, 'family', calls);
    const agents = Object.entries(madeBy).map(([child, spawnedBy]) => {
      const own = calls.filter((call) => taskOf(call).includes(child));
      const agent = own[0]?.who.agent;
      const who = { agent, parent: 'a0', spawned_by: spawnedBy };
      expect(own.map((call) => call.who)).toEqual([0, 1].map(() => ({ ...who, kind: 'main' })));
      const ran = toolActsOf(record).filter(({ call }) => call === `inner_${child}`);
      expect(ran).toEqual([{ ...who, call: `inner_${child}`, tool: 'terminal' }]);
      return agent;
    });
    expect(new Set(agents)).toEqual(new Set(['a1', 'a2', 'a3']));
  },
);

verifies(
  'model:all-clients',
  'the summary at the turn limit and the one of a compaction are recorded as what they are, of the agent that needed them',
  async () => {
    const [limit, compaction] = await Promise.all([
      fleet.run(
        'limit',
        ({ tools }) => (tools === undefined ? say('so far') : callTool('terminal', { command: 'true' })),
        { hermes: { max_turns: 1 } },
      ),
      fleet.run('compacts', fillingScript(6), { hermes: { compaction: true, context_length: 64_000 } }),
    ]);
    expect([limit.verdict, compaction.verdict]).toEqual(['incomplete/max_turns', 'ok']);
    for (const [name, kind] of [
      ['limit', 'summary'],
      ['compacts', 'auxiliary'],
    ] as const) {
      const calls = modelCallsIn(await journalOf(fleet, name));
      expectAllRecorded(fleet, name, calls);
      const side = calls.filter(({ who }) => who.kind !== 'main');
      expect(side.length).toBeGreaterThan(0);
      for (const { who } of side) expect(who).toMatchObject({ agent: 'a0', parent: null, spawned_by: null, kind });
    }
    for (const { activation } of [limit, compaction])
      expect(activation.body).toMatchObject({ integrity: 'captured', integrity_notes: [], complete: true });
  },
);

verifies(
  ['model:all-clients', 'model:whole'],
  "every auxiliary task, one on a thread, an asynchronous one and bare default clients reach the rollout's URL, and nothing else is reached",
  async () => {
    const { folder, python } = await runnerPython(PROBING_RUNNER);
    try {
      await using local = await startHermesFleet({ provider: 'local', env: { FLEET_LOCAL_PYTHON: python } });
      const url = `${local.model.url}/ng-rollout/9c2e`;
      const script: Script = (request) => {
        const asked = taskOf(request);
        if (asked.startsWith('AUX ')) return say(`heard ${asked.slice(4)}`);
        return turnOf(request) === 0
          ? callTool('probe_clients', { model: 'asks' }, 'call_probe')
          : say('asked them all');
      };
      const { verdict, items, activation } = await local.run('asks', script, {
        hermes: { toolsets: ['terminal'] },
        model: { base_url: url },
      });
      expect(JSON.parse(outputsIn(items)[0] ?? '{}')).toEqual({
        ...Object.fromEntries(PROBED.map((way) => [way, `heard ${way}`])),
        elsewhere: 403,
      });
      expect(verdict).toBe('ok');
      const calls = modelCallsIn(await journalOf(local, 'asks'));
      expectAllRecorded(local, 'asks', calls, url);
      expect(local.model.calls.filter(({ path }) => path !== '/v1/ng-rollout/9c2e/chat/completions')).toEqual([]);
      const asked = calls.filter((call) => taskOf(call).startsWith('AUX '));
      expect(asked.map((call) => taskOf(call).slice(4)).toSorted()).toEqual([...PROBED].toSorted());
      expect(asked.map(({ who }) => who)).toEqual(
        asked.map(() => expect.objectContaining({ parent: null, spawned_by: null, kind: 'auxiliary' }) as unknown),
      );
      // On a bare thread Hermes itself no longer knows its agent.
      const lost = asked.filter(({ who }) => who.agent !== 'a0').map((call) => taskOf(call).slice(4));
      expect(lost).toEqual(['thread']);
      expect(activation.body?.usage.root.total_tokens).toBe(2 * 15);
      expect(activation.body?.usage.others.total_tokens).toBe(PROBED.length * 15);
      expect(activation.body).toMatchObject({
        integrity: 'claimed',
        integrity_notes: [],
        counts: { turns: 2, model_calls: 2 + PROBED.length },
      });
      expect(activation.body?.gaps).toContainEqual({ code: 'http_refused', detail: 'http://elsewhere.invalid/x' });
    } finally {
      await rm(folder, { recursive: true });
    }
  },
);

verifies(
  'model:capture',
  'what a script of execute_code does in the sandbox is recorded as done by its agent, under the call of the script',
  async () => {
    const code =
      'from hermes_tools import terminal, write_file\nwrite_file("n.txt", "nested")\nprint(terminal("cat n.txt"))\n';
    const { verdict, items } = await fleet.run(
      'nested',
      turns([callTool('execute_code', { code }, 'call_script'), say('done')]),
      { hermes: { toolsets: ['terminal', 'file', 'code_execution'] } },
    );
    expect(verdict).toBe('ok');
    expect(outputsIn(items)[0]).toContain('nested');
    const record = await journalOf(fleet, 'nested');
    expectAllRecorded(fleet, 'nested', modelCallsIn(record));
    const ran = toolActsOf(record);
    for (const who of ran)
      expect(who).toMatchObject({ agent: 'a0', parent: null, spawned_by: null, call: 'call_script' });
    expect(new Set(ran.map(({ tool }) => tool))).toEqual(new Set(['execute_code', 'write_file', 'terminal']));
  },
);

verifies(
  'model:sampling',
  'sampling reaches the root and its children as it was set, a request overlays its session, and nothing is invented where nothing was set',
  async () => {
    const script: Script = (request) => {
      if (request.tools === undefined) return say('a summary');
      return taskOf(request).includes('CHILD') || turnOf(request) > 0
        ? callTool('terminal', { command: 'true' })
        : callTool('delegate_task', { goal: 'CHILD' });
    };
    const hermes = { toolsets: ['terminal', 'delegation'], max_turns: 2, delegation: { max_turns: 1 } };
    const extra = { chat_template_kwargs: { enable_thinking: false }, repetition_penalty: 1.5 };
    await Promise.all([
      fleet.run(
        'sampled',
        script,
        { hermes, model: { sampling: { temperature: 0.25, top_p: 0.5, seed: 7, extra_body: extra } } },
        { temperature: 0.75 },
      ),
      // A name at which Hermes knows of a thinking mode.
      fleet.run('qwen/qwen3-thinking', script, { hermes }),
    ]);
    const settingsOf = (name: string, isMain: boolean): Record<string, unknown>[] =>
      fleet.model
        .callsOf(name)
        .filter(({ body }) => (body?.tools !== undefined) === isMain)
        .map(({ body }) => {
          const {
            messages: _messages,
            tools: _tools,
            model: _model,
            ...settings
          } = body ?? { messages: [], model: '' };
          return settings;
        });
    const set = { max_tokens: 8192, temperature: 0.75, top_p: 0.5, seed: 7, ...extra };
    expect(settingsOf('sampled', true)).toEqual([set, set, set]);
    // Hermes asks for a summary without the settings of its turns.
    expect(settingsOf('sampled', false)).toEqual([{ max_tokens: 8192 }, { max_tokens: 8192 }]);
    for (const isMain of [true, false])
      for (const settings of settingsOf('qwen/qwen3-thinking', isMain)) expect(settings).toEqual({ max_tokens: 8192 });
  },
);

const thinking = (thought: string, reply: Completion): Completion => ({
  ...reply,
  message: { ...reply.message, reasoning_content: thought },
});

verifies(
  'hermes:reasoning',
  'reasoning is sent back as it was: in the next turn, to the summary, by a child, and in a later activation that is handed the history (A11)',
  async () => {
    const thoughts = [' one:\n\ttabs & <b>\u00e9\u2028 ', 'two "quoted"\\', 'THREE\n\n\nlines'];
    const step = (n: number): Completion =>
      thinking(thoughts[n] ?? '', callTool('terminal', { command: 'true' }, `c${n}`));
    fleet.model.script('thinks', (request) => {
      if (request.tools === undefined) return thinking('of the summary', say('summed up'));
      if (taskOf(request).includes('CHILD'))
        return turnOf(request) === 0 ? thinking('of a child', callTool('terminal', { command: 'true' })) : say('c');
      if (textOf(request.messages.at(-1)) === 'and now?') return say('remembered');
      return turnOf(request) === 2
        ? thinking(thoughts[2] ?? '', callTool('delegate_task', { goal: 'CHILD' }, 'c2'))
        : step(turnOf(request));
    });
    await using session = await fleet.client.open(
      fleet.seedOf('thinks', 'thinks', { hermes: { toolsets: ['terminal', 'delegation'], max_turns: 3 } }),
    );
    const first = await session.activate('think first');
    expect(first.code).toBe('max_turns');
    const output = first.body?.response.output ?? [];
    const said = (content: string) => ({ role: 'user' as const, content });
    const input = [said('think first'), ...output, said('and now?')];
    const second = await session.activate({ input });
    expect(second.class).toBe('ok');
    const calls = fleet.model.callsOf('thinks').map(({ body }) => body ?? { model: '', messages: [] });
    const replayed = (messages: RecordedCall['messages'] = []): unknown[] =>
      messages.filter(({ role }) => role === 'assistant').map((message) => message.reasoning_content);
    const summary = calls.find(({ tools }) => tools === undefined);
    expect(replayed(summary?.messages)).toEqual(thoughts);
    expect(replayed(calls.findLast((call) => taskOf(call).includes('CHILD'))?.messages)).toEqual(['of a child']);
    expect(replayed(calls.at(-1)?.messages)).toEqual([...thoughts, 'of the summary']);
    const kinds = (items: readonly OutputItem[]): string[] => items.map(({ type }) => type);
    expect(kinds(output).slice(0, 3)).toEqual(['reasoning', 'function_call', 'function_call_output']);
    expect(kinds(output).slice(-2)).toEqual(['reasoning', 'message']);
  },
);

verifies(
  ['model:capture', 'mcp:names'],
  'a tool name that Hermes repairs is reported as the model wrote it, with the one that ran',
  async () => {
    const { verdict, items, activation, close } = await fleet.run(
      'repaired',
      turns([callTool('Terminal_tool', { command: 'echo ran anyway' }, 'call_r'), say('done')]),
    );
    expect(verdict).toBe('ok');
    expect(callsIn(items).map(({ name }) => name)).toEqual(['Terminal_tool']);
    expect(outputsIn(items)[0]).toContain('ran anyway');
    expect(activation.body?.gaps).toContainEqual({
      code: 'tool_name_repaired',
      detail: 'asked for Terminal_tool, ran terminal',
    });
    expect(activation.body).toMatchObject({ integrity: 'captured', complete: true });
    const [tool] = (close.body?.observations.records ?? []).filter((record) => record.kind === 'tool_call');
    expect(tool).toMatchObject({ tool_name: 'Terminal_tool', tool_call_id: 'call_r' });
    expect(messagesIn(items)).toEqual(['done']);
  },
);
