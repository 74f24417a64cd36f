import { afterAll, beforeAll, expect } from 'vitest';
import { callsIn, type HermesFleet, messagesIn, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { callTool, type ChatRequest, say, type Script, textOf, turnOf } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: HermesFleet;

beforeAll(async () => {
  fleet = await startHermesFleet();
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

const taskOf = ({ messages }: ChatRequest): string => textOf(messages.find(({ role }) => role === 'user'));

/** The root delegates twice at once; each child works in the sandbox and answers; the second runs into its turn limit. */
const family: Script = (request) => {
  const turn = turnOf(request);
  const task = taskOf(request);
  // The summary's request follows a message of the user, and so looks like a first turn.
  if (request.tools === undefined)
    return say(task.includes('CHILD-TWO') ? 'two ran out of turns' : 'summary of the root');
  if (task.includes('CHILD-ONE'))
    return turn === 0 ? callTool('terminal', { command: 'echo from-one > one.txt' }) : say('one is done');
  if (task.includes('CHILD-TWO')) return callTool('terminal', { command: 'echo from-two >> two.txt' });
  if (turn === 0)
    return callTool(
      'delegate_task',
      { tasks: [{ goal: 'CHILD-ONE: write one.txt' }, { goal: 'CHILD-TWO: write two.txt' }] },
      'call_family',
    );
  if (turn === 1) return callTool('terminal', { command: 'cat one.txt two.txt' });
  return callTool('terminal', { command: 'true' });
};

verifies(
  ['model:whole', 'model:capture', 'model:no-reach-needed'],
  'root, parallel children and both turn-limit summaries make whole requests to the URL of the rollout, each recorded with who made it',
  async () => {
    const url = `${fleet.model.url}/ng-rollout/7f3a`;
    const { verdict, items, activation, close } = await fleet.run('family', family, {
      hermes: { toolsets: ['terminal', 'file', 'delegation'], max_turns: 4, delegation: { max_turns: 2 } },
      model: { base_url: url },
    });
    expect(verdict).toBe('incomplete/max_turns');
    expect(messagesIn(items)).toEqual(['summary of the root']);
    expect(outputsIn(items)[1]).toMatch(/from-one[^]*from-two/);
    const calls = fleet.model.callsOf('family');
    expect(calls.every(({ path }) => path === '/v1/ng-rollout/7f3a/chat/completions')).toBe(true);
    expect(calls.every(({ body }) => body !== undefined && !('stream' in body) && !('stream_options' in body))).toBe(
      true,
    );
    expect(activation.body?.counts).toMatchObject({ agents: 3, model_calls: calls.length, turns: 4 });
    const agents = (close.body?.observations.records ?? [])
      .filter((record) => record.kind === 'agent_invocation')
      .toSorted((one, other) => one.invocation_id.localeCompare(other.invocation_id));
    expect(
      agents.map(
        ({ invocation_id: id, parent_invocation_id: parent, spawned_by_tool_call_id: by, model_calls: made }) => ({
          id,
          parent,
          by,
          made: made?.length,
        }),
      ),
    ).toEqual([
      { id: 'a:a0', parent: null, by: null, made: 5 },
      { id: 'a:a1', parent: 'a:a0', by: 'call_family', made: 2 },
      { id: 'a:a2', parent: 'a:a0', by: 'call_family', made: 3 },
    ]);
    const root = activation.body?.usage.root.total_tokens ?? 0;
    expect(root).toBe(5 * 15);
    expect(activation.body?.usage.others.total_tokens).toBe(5 * 15);
  },
);

verifies(
  ['model:whole', 'model:capture'],
  'compaction makes a whole call of its own, which is no turn of the agent and no item of its output',
  async () => {
    const { verdict, activation, items, close } = await fleet.run(
      'compacts',
      (request) => {
        if (request.tools === undefined) return say('SUMMARY of what was done');
        const turn = request.messages.filter(({ role }) => role === 'tool').length;
        return fleet.model.callsOf('compacts').filter(({ body }) => body?.tools !== undefined).length > 9
          ? say('done')
          : {
              ...callTool('terminal', { command: `echo step ${turn}; seq 1 400` }),
              usage: {
                prompt_tokens: 20_000 + 8_000 * turn,
                completion_tokens: 10,
                total_tokens: 20_010 + 8_000 * turn,
              },
            };
      },
      { hermes: { compaction: true, context_length: 64_000 } },
    );
    expect(verdict).toBe('ok');
    expect(messagesIn(items)).toEqual(['done']);
    expect(activation.body?.counts.turns).toBe(10);
    const auxiliary = fleet.model.callsOf('compacts').filter(({ body }) => body?.tools === undefined);
    expect(auxiliary.length).toBeGreaterThan(0);
    expect(activation.body?.usage.others.total_tokens).toBe(15 * auxiliary.length);
    expect(close.body?.observations.records.map(({ kind }) => kind)).toContain('context_compaction');
    expect(outputsIn(items)).toHaveLength(9);
  },
);

verifies(
  ['model:capture', 'model:no-reach-needed'],
  'tools that a script of execute_code calls run in the sandbox, under the call of the script',
  async () => {
    const code =
      'from hermes_tools import terminal, write_file\nwrite_file("nested.txt", "by the script")\nprint(terminal("cat nested.txt; hostname"))\n';
    const { verdict, items, activation } = await fleet.run(
      'nested',
      (request) => (turnOf(request) === 0 ? callTool('execute_code', { code }, 'call_script') : say('done')),
      { hermes: { toolsets: ['terminal', 'file', 'code_execution'] } },
    );
    expect(verdict).toBe('ok');
    expect(callsIn(items).map(({ name }) => name)).toEqual(['execute_code']);
    expect(outputsIn(items)[0]).toMatch(/by the script[^]*sandbox/);
    expect(activation.body?.integrity).toBe('captured');
  },
);

verifies(
  'model:capture',
  'every call of an activation goes to the base URL of that activation, and of no earlier one in the same sandbox',
  async () => {
    fleet.model.script('moves', (request) => {
      if (request.tools === undefined) return say('a summary');
      return taskOf(request).includes('CHILD') || turnOf(request) > 0
        ? callTool('terminal', { command: 'true' })
        : callTool('delegate_task', { goal: 'CHILD: do nothing' });
    });
    await using session = await fleet.client.open(
      fleet.seedOf('moves', 'moves', {
        hermes: { toolsets: ['terminal', 'delegation'], max_turns: 2, delegation: { max_turns: 1 } },
      }),
    );
    for (const prefix of ['first', 'second']) {
      const before = fleet.model.callsOf('moves').length;
      const result = await fleet.client.activate({
        session_id: session.id,
        activation_id: prefix,
        request: { input: 'delegate' },
        base_url: `${fleet.model.url}/${prefix}`,
      });
      expect(result.code).toBe('max_turns');
      const paths = fleet.model
        .callsOf('moves')
        .slice(before)
        .map(({ path }) => path);
      // Root, child and both summaries.
      expect(paths).toEqual(Array.from({ length: 5 }, () => `/v1/${prefix}/chat/completions`));
    }
  },
);

verifies(
  'model:no-reach-needed',
  'nothing but completions was asked of the Model Server, and nothing was asked to stream',
  () => {
    expect(fleet.model.calls.filter(({ path }) => !path.endsWith('/chat/completions'))).toEqual([]);
    expect(fleet.model.refusedStreams).toBe(0);
  },
);

verifies('model:no-reach-needed', 'a sandbox has no network but its loopback', async () => {
  const { items } = await fleet.run('no-network', (request) =>
    turnOf(request) === 0
      ? callTool('terminal', {
          command: `cat /proc/net/dev | tail -n +3 | cut -d: -f1 | xargs; python3 -c "import socket; socket.create_connection(('127.0.0.1', ${fleet.model.port}), 2)" 2>&1 | tail -1`,
        })
      : say('done'),
  );
  expect(outputsIn(items)[0]).toMatch(/"lo\\n.*refused/i);
});
