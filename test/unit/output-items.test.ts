import { OutputItem } from '@hermes-fleet/shared';
import { expect, test } from 'vitest';
import { outputItems } from '@hermes-fleet/worker/hermes/output-items';
import { trajectoryOf } from '@hermes-fleet/worker/hermes/trajectory';
import {
  assistantMessage,
  child,
  RecordBuilder,
  ROOT_AGENT,
  toolMessage,
  userMessage,
} from '../setup/journal-record.ts';
import { verifies } from '../setup/verifies.ts';

const itemsOf = (builder: RecordBuilder): OutputItem[] => outputItems(trajectoryOf(builder.record), 'p');

/** Items as short words: the kind, and what matters of it. */
function words(builder: RecordBuilder): string[] {
  return itemsOf(builder).map((item) => {
    if (item.type === 'message') return `says ${item.content.map(({ text }) => text).join('')}`;
    if (item.type === 'reasoning') return `thinks ${item.summary.map(({ text }) => text).join('')}`;
    if (item.type === 'function_call') return `calls ${item.call_id} ${item.name} ${item.status}`;
    return `gets ${item.call_id} ${item.output}`;
  });
}

const ask = userMessage('ask');
const terminal = (id: string) => ({ id, name: 'terminal' });

test('an answered call gives reasoning, text and tool calls, each tool call followed by what the model was shown', () => {
  const builder = new RecordBuilder()
    .call({ reasoning: 'hm', content: 'looking', tools: [terminal('c1'), terminal('c2')] }, [ask])
    .call({ content: 'done' }, [ask, assistantMessage('looking'), toolMessage('c2', 'two'), toolMessage('c1', 'one')]);
  expect(words(builder)).toEqual([
    'thinks hm',
    'says looking',
    'calls c1 terminal completed',
    'gets c1 one',
    'calls c2 terminal completed',
    'gets c2 two',
    'says done',
  ]);
  for (const item of itemsOf(builder)) expect(OutputItem.parse(item)).toEqual(item);
  const ids = itemsOf(builder).map(({ id }) => id);
  expect(new Set(ids).size).toBe(ids.length);
});

test('a call whose reply the agent dropped gets no output of another one', () => {
  const first = [ask, assistantMessage(null), toolMessage('c1', 'one')];
  const builder = new RecordBuilder()
    .call({ tools: [terminal('c1')] }, [ask])
    .call({ tools: [terminal('bad')] }, first)
    .call({ tools: [terminal('c3')] }, first)
    .call({ content: 'done' }, [...first, assistantMessage(null), toolMessage('c3', 'three')]);
  expect(words(builder)).toEqual([
    'calls c1 terminal completed',
    'gets c1 one',
    'calls bad terminal incomplete',
    'calls c3 terminal completed',
    'gets c3 three',
    'says done',
  ]);
});

test('equal ids are told apart by order, and are unique in the response', () => {
  const builder = new RecordBuilder()
    .call({ tools: [terminal('call_0'), terminal('call_0')] }, [ask])
    .call({ tools: [terminal('call_0')] }, [
      ask,
      assistantMessage(null),
      toolMessage('call_0', 'one'),
      toolMessage('call_0', 'two'),
    ])
    .call({ content: 'x' }, [ask, assistantMessage(null), toolMessage('call_0', 'three')]);
  expect(words(builder).filter((word) => word.startsWith('gets'))).toEqual([
    'gets call_0 one',
    'gets call_0_2 two',
    'gets call_0_3 three',
  ]);
});

test('empty ids get one of ours, and their outputs by order', () => {
  const builder = new RecordBuilder()
    .call({ tools: [terminal(''), terminal('')] }, [ask])
    .call({ content: 'x' }, [ask, assistantMessage(null), toolMessage('made_1', 'one'), toolMessage('made_2', 'two')]);
  expect(words(builder)).toEqual([
    'calls call_1_0 terminal completed',
    'gets call_1_0 one',
    'calls call_1_1 terminal completed',
    'gets call_1_1 two',
    'says x',
  ]);
});

test('an output that names its call does not go to another one, though that has none', () => {
  const builder = new RecordBuilder()
    .call({ tools: [terminal(''), terminal('c2')] }, [ask])
    .call({ content: 'x' }, [ask, assistantMessage(null), toolMessage('made', 'one'), toolMessage('c2', 'two')]);
  expect(words(builder)).toContain('gets c2 two');
  const reversed = new RecordBuilder()
    .call({ tools: [terminal('c1'), terminal('c2')] }, [ask])
    .call({ content: 'x' }, [ask, assistantMessage(null), toolMessage('new_id', 'one'), toolMessage('c1', 'mine')]);
  expect(words(reversed).slice(0, 2)).toEqual(['calls c1 terminal completed', 'gets c1 mine']);
});

test('a call whose output nobody recorded has none, and is incomplete', () => {
  const builder = new RecordBuilder().call({ tools: [terminal('c1'), terminal('c2')] }, [ask]).exec('c1', undefined);
  expect(words(builder)).toEqual(['calls c1 terminal incomplete', 'calls c2 terminal incomplete']);
});

test('of a run that was cut the recorded outputs are shown', () => {
  const builder = new RecordBuilder()
    .call({ tools: [terminal('c1'), { id: 'c2', name: 'mcp__w__t' }] }, [ask])
    .exec('c1', 'from the shell')
    .mcp('c2', { content: [{ type: 'text', text: 'from the server' }] });
  expect(words(builder)).toEqual([
    'calls c1 terminal completed',
    'gets c1 from the shell',
    'calls c2 mcp__w__t completed',
    'gets c2 {"content":[{"type":"text","text":"from the server"}]}',
  ]);
});

test('what an earlier call of the same id got is not the output of a later one', () => {
  const builder = new RecordBuilder()
    .call({ tools: [{ id: 'call_0', name: 'mcp__w__t' }] }, [ask])
    .mcp('call_0', { old: true })
    .call({ tools: [terminal('call_0')] }, [ask, assistantMessage(null), toolMessage('call_0', 'old')])
    .exec('call_0', undefined);
  expect(words(builder).slice(2)).toEqual(['calls call_0_2 terminal incomplete']);
});

test("of two calls of one id, or of a child's call, no output is guessed", () => {
  const twice = new RecordBuilder().call({ tools: [terminal('c'), terminal('c')] }, [ask]).exec('c', 'whose?');
  expect(words(twice)).toEqual(['calls c terminal incomplete', 'calls c_2 terminal incomplete']);
  const childs = new RecordBuilder()
    .call({ tools: [{ id: 'c', name: 'delegate_task' }] }, [ask])
    .call({ tools: [terminal('c')] }, [ask], child('a1', 'c'))
    .exec('c', 'of the child', { who: child('a1', 'c') });
  expect(words(childs)).toEqual(['calls c delegate_task incomplete']);
});

test('what Hermes ran for a file tool is not what the model was shown', () => {
  const builder = new RecordBuilder()
    .call({ tools: [{ id: 'c1', name: 'write_file' }] }, [ask])
    .exec('c1', 'stat output', { isInternal: true });
  expect(words(builder)).toEqual(['calls c1 write_file incomplete']);
});

verifies('mcp:names', 'tools of granted servers have the name of the grant, whatever Hermes made of it', () => {
  const servers = ['weather', 'my_srv', 'my-srv2', 'a__b'];
  const tools = ['get_weather', 'get-weather2'];
  const builder = new RecordBuilder().servers(Object.fromEntries(servers.map((server) => [server, tools])));
  const clean = (name: string): string => name.replaceAll('-', '_');
  for (const server of servers)
    for (const tool of tools) {
      const id = `${server}.${tool}`;
      builder.call({ tools: [{ id, name: `mcp__${clean(server)}__${clean(tool)}` }] }, [ask]);
      builder.call({ tools: [{ id: `old.${id}`, name: `mcp_${clean(server)}_${clean(tool)}` }] }, [ask]);
    }
  for (const item of itemsOf(builder)) {
    if (item.type !== 'function_call') continue;
    const [server, tool] = item.call_id.replace(/^old\./, '').split('.');
    expect(item.name).toBe(`mcp__${server}__${tool}`);
  }
});

verifies(
  'mcp:names',
  'an old name that two tools share, and a name that is no grant, stay as the model said them',
  () => {
    const builder = new RecordBuilder().servers({ my_srv: ['x'], my: ['srv_x'] }).call(
      {
        tools: [
          { id: '1', name: 'mcp_my_srv_x' },
          { id: '2', name: 'mcp__my__srv_x' },
          { id: '3', name: 'mcp__other__x' },
        ],
      },
      [ask],
    );
    expect(itemsOf(builder).map((item) => (item.type === 'function_call' ? item.name : ''))).toEqual([
      'mcp_my_srv_x',
      'mcp__my__srv_x',
      'mcp__other__x',
    ]);
  },
);

test('reasoning alone is an item of its own, and an empty answer is none', () => {
  expect(words(new RecordBuilder().call({ reasoning: 'hm', content: '' }, [ask]))).toEqual(['thinks hm']);
  expect(words(new RecordBuilder().call({ content: '' }, [ask]))).toEqual([]);
  expect(words(new RecordBuilder().call({ content: null }, [ask]))).toEqual([]);
});

test('tries that failed are no items, and do not hide what the next one shows', () => {
  const shown = [ask, assistantMessage(null), toolMessage('c1', 'one')];
  const builder = new RecordBuilder()
    .call({ error: 'infra/model_unreachable' }, [ask])
    .call({ tools: [terminal('c1')] }, [ask])
    .call({ error: 'infra/model_rate_limited', status: 429 }, shown)
    .call({ content: 'done' }, shown);
  expect(words(builder)).toEqual(['calls c1 terminal completed', 'gets c1 one', 'says done']);
});

test('children and auxiliary clients are not in the output; the summary at the turn limit is', () => {
  const builder = new RecordBuilder()
    .call({ tools: [{ id: 'c1', name: 'delegate_task' }] }, [ask])
    .call({ content: 'of the child' }, [ask], child('a1', 'c1'))
    .call({ content: 'of a helper' }, [ask], { ...ROOT_AGENT, kind: 'auxiliary' })
    .call({ content: 'in sum' }, [ask, assistantMessage(null), toolMessage('c1', 'r')], {
      ...ROOT_AGENT,
      kind: 'summary',
    });
  expect(words(builder)).toEqual(['calls c1 delegate_task completed', 'gets c1 r', 'says in sum']);
});

test("a call that the runner did not tag is not taken for the root agent's", () => {
  const builder = new RecordBuilder().call({ content: 'whose?' }, [ask], undefined);
  const [act] = builder.record.acts;
  const untagged = { ...builder.record, acts: act === undefined ? [] : [{ ...act, intent: { messages: [] } }] };
  expect(outputItems(trajectoryOf(untagged), 'p')).toEqual([]);
});

test("arguments are the model's own bytes, broken ones too, and halves of surrogate pairs are replaced", () => {
  const builder = new RecordBuilder().call(
    { content: 'a\uD83Db', tools: [{ id: 'c', name: 'terminal', args: '{"id": 9007199254740993, "command": "l' }] },
    [ask],
  );
  expect(itemsOf(builder)).toMatchObject([
    { content: [{ text: 'a\uFFFDb' }] },
    { arguments: '{"id": 9007199254740993, "command": "l' },
  ]);
});

test('token ids stand whole on the last item of their call, though prompts share their beginnings', () => {
  const builder = new RecordBuilder()
    .call(
      {
        reasoning: 'hm',
        content: 'one',
        tools: [terminal('c')],
        tokens: [
          [1, 2, 3],
          [4, 5],
        ],
      },
      [ask],
    )
    .call({ content: 'child', tokens: [[1, 2, 9], [8]] }, [ask], child('a1', 'c'))
    .call({ content: 'two', tokens: [[1, 2, 3, 4, 5, 6], [7]] }, [ask, assistantMessage('one'), toolMessage('c', 'r')])
    .call({ content: 'three', tokens: [[1, 2], [3]] }, [ask]);
  const tokens = itemsOf(builder).map((item) => [
    item.type,
    'prompt_token_ids' in item ? item.prompt_token_ids : undefined,
    'generation_token_ids' in item ? item.generation_token_ids : undefined,
  ]);
  expect(tokens).toEqual([
    ['reasoning', undefined, undefined],
    ['message', undefined, undefined],
    ['function_call', [1, 2, 3], [4, 5]],
    ['function_call_output', undefined, undefined],
    ['message', [1, 2, 3, 4, 5, 6], [7]],
    ['message', [1, 2], [3]],
  ]);
});

test('token ids whose shared beginning is lost are left out, not made shorter', () => {
  const builder = new RecordBuilder()
    .call({ content: 'one', tokens: [[1, 2, 3], [4]], isLost: true }, [ask])
    .call({ content: 'two', tokens: [[1, 2, 3, 4, 5], [6]] }, [ask]);
  const trajectory = trajectoryOf(builder.record);
  expect(outputItems(trajectory, 'p')).toMatchObject([{ content: [{ text: 'two' }] }]);
  expect(outputItems(trajectory, 'p')[0]).not.toHaveProperty('prompt_token_ids');
  expect(trajectory.gaps.map(({ code }) => code)).toEqual(['model_reply_lost', 'token_ids_lost', 'token_ids_lost']);
});

test('only the run that counts is shown: the one that is named, else the last that acted', () => {
  const builder = new RecordBuilder()
    .call({ content: 'first run' }, [ask])
    .begin('2.bb')
    .call({ content: 'second run' }, [ask]);
  expect(words(builder)).toEqual(['says second run']);
  expect(outputItems(trajectoryOf(builder.record, '1.aa'), 'p')).toMatchObject([{ content: [{ text: 'first run' }] }]);
  expect(trajectoryOf(builder.record, '3.cc').calls).toEqual([]);
  expect(trajectoryOf(builder.record, '3.cc').otherCalls).toHaveLength(2);
});
