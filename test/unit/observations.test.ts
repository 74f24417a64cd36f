import { readFileSync } from 'node:fs';
import path from 'node:path';
import { ObservationBundle } from '@hermes-fleet/shared';
import { expect, test } from 'vitest';
import { observationBundle, type ObservedActivation } from '@hermes-fleet/worker/hermes/observations';
import { trajectoryOf } from '@hermes-fleet/worker/hermes/trajectory';
import {
  assistantMessage,
  child,
  RecordBuilder,
  ROOT_AGENT,
  toolMessage,
  userMessage,
} from '../setup/journal-record.ts';
import { schemaFault } from '../setup/json-schema.ts';

const gym = JSON.parse(
  readFileSync(path.join(import.meta.dirname, '../data/gym-observation-schema.json'), 'utf8'),
) as object;
const ask = userMessage('ask');
const sandbox = { provider: 'docker', id: 'box', outcome: 'completed', wallTimeS: 1.5, usage: undefined } as const;
const of = (id: string, builder: RecordBuilder): ObservedActivation => ({
  id,
  trajectory: trajectoryOf(builder.record),
});

/** A bundle that Gym takes, by its schema and by the rules that are in no schema. */
function bundleOf(...activations: readonly ObservedActivation[]): ObservationBundle {
  const bundle = observationBundle(activations, sandbox);
  expect(schemaFault(gym, bundle)).toBeUndefined();
  expect(ObservationBundle.parse(bundle)).toEqual(bundle);
  const agents = bundle.records.filter((record) => record.kind === 'agent_invocation');
  const parents = new Map(agents.map((record) => [record.invocation_id, record.parent_invocation_id ?? undefined]));
  expect(parents.size).toBe(agents.length);
  for (const start of parents.keys()) {
    let steps = 0;
    for (let at: string | undefined = start; at !== undefined; at = parents.get(at)) expect(++steps).toBeLessThan(100);
  }
  for (const parent of parents.values()) if (parent !== undefined) expect(parents.has(parent)).toBe(true);
  return bundle;
}

const kind = <Kind extends string>(bundle: ObservationBundle, name: Kind) =>
  bundle.records.flatMap((record) => (record.kind === name ? [record as Extract<typeof record, { kind: Kind }>] : []));

const terminal = { id: 'c1', name: 'terminal', args: '{"command":"ls"}' };

test('a session with children, helpers, tools and a compaction is a bundle that Gym takes', () => {
  const builder = new RecordBuilder()
    .call({ reasoning: 'hm', content: 'looking', tools: [terminal, { id: 'c2', name: 'delegate_task' }] }, [ask])
    .exec('c1', 'files')
    .call({ content: 'of the child' }, [userMessage('sub')], child('a1', 'c2'))
    .call({ content: 'title' }, [ask], { agent: null, parent: null, spawned_by: null, kind: 'auxiliary' })
    .event({ kind: 'compaction', who: ROOT_AGENT })
    .event({ kind: 'agent_end', who: ROOT_AGENT, status: 'completed' })
    .call({ content: 'done' }, [ask, assistantMessage('looking', terminal), toolMessage('c1', 'files')]);
  const bundle = bundleOf(of('act', builder), of('act.2', builder));
  expect(
    kind(bundle, 'agent_invocation').map((record) => [
      record.invocation_id,
      record.parent_invocation_id,
      record.status,
    ]),
  ).toEqual(
    ['act', 'act.2'].flatMap((id) => [
      [`${id}:a0`, null, 'completed'],
      [`${id}:a1`, `${id}:a0`, 'unknown'],
      [`${id}:unknown`, null, 'unknown'],
    ]),
  );
  expect(kind(bundle, 'agent_invocation')[0]?.conversation).toEqual([
    { type: 'message', role: 'user', content: 'ask' },
    { type: 'message', role: 'assistant', content: 'looking' },
    { type: 'function_call', call_id: 'c1', name: 'terminal', arguments: '{"command":"ls"}' },
    { type: 'function_call_output', call_id: 'c1', output: 'files' },
    { type: 'message', role: 'assistant', content: 'done' },
  ]);
  expect(kind(bundle, 'tool_call')[0]).toMatchObject({
    tool_call_id: 'c1',
    sandbox_id: 'box',
    status: 'completed',
    timing_source: 'harness',
  });
  expect(kind(bundle, 'context_compaction')).toHaveLength(2);
  expect(kind(bundle, 'sandbox')).toMatchObject([
    { role: 'agent', provider: 'docker', outcome: 'completed', wall_time_s: 1.5 },
  ]);
});

test('model calls are named by their response ids, in order, per agent', () => {
  const builder = new RecordBuilder()
    .call({ content: 'one' }, [ask])
    .call({ error: 'infra/model_rate_limited', status: 429 }, [ask])
    .call({ content: 'two' }, [ask]);
  expect(kind(bundleOf(of('a', builder)), 'agent_invocation')[0]?.model_calls?.map((call) => call.response_id)).toEqual(
    ['chat-1.aa-1', 'chat-1.aa-3'],
  );
});

test('an agent whose every call failed has no conversation, and one that is cut has a gap', () => {
  const failed = bundleOf(of('a', new RecordBuilder().call({ error: 'infra/model_unreachable' }, [ask])));
  expect(kind(failed, 'agent_invocation')[0]).not.toHaveProperty('conversation');
  const cut = bundleOf(of('a', new RecordBuilder().call(undefined, [ask])));
  expect(cut.gaps).toMatchObject([{ code: 'model_calls_unavailable', invocation_id: 'a:a0' }]);
});

test('parents that go in a circle, or are nobody, are left out', () => {
  const circle = new RecordBuilder()
    .call({ content: 'x' }, [ask], child('a1', 'c', 'a2'))
    .call({ content: 'x' }, [ask], child('a2', 'c', 'a1'))
    .call({ content: 'x' }, [ask], child('a3', 'c', 'a3'))
    .call({ content: 'x' }, [ask], child('a4', 'c', 'nobody'));
  const parents = kind(bundleOf(of('a', circle)), 'agent_invocation').map((record) => record.parent_invocation_id);
  expect(parents).toEqual([null, 'a:a1', null, null]);
});

test('times of a tool call are its own, though its id was used before', () => {
  const call = { id: 'call_0', name: 'terminal' };
  const builder = new RecordBuilder()
    .call({ tools: [call] }, [ask])
    .exec('call_0', 'one')
    .call({ tools: [call] }, [ask])
    .exec('call_0', undefined);
  const [first, second] = kind(bundleOf(of('a', builder)), 'tool_call');
  expect([first?.status, second?.status]).toEqual(['completed', 'incomplete']);
  expect(second?.started_at ?? 0).toBeGreaterThan(first?.completed_at ?? Infinity);
});

test('a session without a sandbox and without activations says what is missing', () => {
  expect(observationBundle([], undefined)).toEqual({
    source: 'hermes-fleet',
    records: [],
    gaps: [{ code: 'sandbox_observation_unavailable' }],
  });
});
