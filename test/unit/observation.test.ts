import { readFileSync } from 'node:fs';
import path from 'node:path';
import { ObservationBundle } from '@hermes-fleet/shared';
import { expect, test } from 'vitest';
import { schemaFault } from '../setup/json-schema.ts';

type Properties = Readonly<Record<string, { readonly properties: object; readonly required?: readonly string[] }>>;

const file = path.join(import.meta.dirname, '../data/gym-observation-schema.json');
const gym = JSON.parse(readFileSync(file, 'utf8')) as { readonly $defs: Properties };

const ref = { model_ref: { type: 'responses_api_models', name: 'm' }, response_id: 'r' };
const full: Readonly<Record<string, object>> = {
  AgentInvocation: {
    kind: 'agent_invocation',
    invocation_id: 'a',
    parent_invocation_id: null,
    spawned_by_tool_call_id: 'c',
    status: 'completed',
    duration_ms: 0,
    error_type: null,
    model_calls: [ref, { model_call_id: 'x' }],
    conversation: [{ type: 'message', role: 'user', content: 'x' }],
  },
  ToolCallObservation: {
    kind: 'tool_call',
    invocation_id: 'a',
    tool_call_id: 'c',
    sandbox_id: null,
    tool_name: 't',
    started_at: 1.5,
    completed_at: 2,
    duration_ms: 500,
    timing_source: 'harness',
    status: 'timeout',
    error_type: 'x',
  },
  ContextCompactionObservation: {
    kind: 'context_compaction',
    invocation_id: 'a',
    observed_at: 1,
    trigger: 't',
    tokens_before: 2,
    tokens_after: 1,
    outcome: 'completed',
    summary: 's',
    first_kept_item_id: 'i',
    before_model_call: ref,
    model_calls: [ref],
    after_model_call: null,
  },
  SandboxObservation: {
    kind: 'sandbox',
    role: 'agent',
    provider: 'docker',
    sandbox_id: 'x',
    outcome: 'oom',
    exit_code: 137,
    wall_time_s: 1,
    cpu_time_s: 0.5,
    peak_memory_mib: 12.5,
    resource_usage_source: 'engine',
    error_type: null,
  },
};
const gap = { code: 'turns_unavailable', invocation_id: null, detail: 'x' };
const bundle = (records: readonly object[], gaps: readonly object[] = []) => ({
  source: 'hermes-fleet',
  records,
  gaps,
});

test.each(Object.entries(full))('%s has every field that Gym knows, and no other', (name, record) => {
  expect(Object.keys(record).toSorted()).toEqual(Object.keys(gym.$defs[name]?.properties ?? {}).toSorted());
  const whole = bundle([record], [gap]);
  expect(ObservationBundle.parse(whole)).toEqual(whole);
  expect(schemaFault(gym, whole)).toBeUndefined();
  for (const judge of [accepted, acceptedByGym]) expect(judge(bundle([{ ...record, bogus: 1 }]))).toBe(false);
});

const accepted = (value: unknown): boolean => ObservationBundle.safeParse(value).success;
const acceptedByGym = (value: unknown): boolean => schemaFault(gym, value) === undefined;

test.each(Object.entries(full))(
  '%s needs of its fields what Gym needs, and takes null where Gym does',
  (name, record) => {
    for (const field of Object.keys(record).filter((each) => each !== 'kind')) {
      const { [field]: _gone, ...rest } = record as Record<string, unknown>;
      expect([field, accepted(bundle([rest]))]).toEqual([field, acceptedByGym(bundle([rest]))]);
      const empty = bundle([{ ...record, [field]: null }]);
      expect([name, field, accepted(empty)]).toEqual([name, field, acceptedByGym(empty)]);
    }
  },
);

test.each([
  { ...full['SandboxObservation'], outcome: 'killed' },
  { ...full['SandboxObservation'], wall_time_s: -1 },
  { ...full['ToolCallObservation'], duration_ms: -1 },
  { ...full['ToolCallObservation'], timing_source: 'worker' },
  { ...full['ContextCompactionObservation'], tokens_after: 1.5 },
  { ...full['AgentInvocation'], model_calls: [{ model_ref: { type: 'x', name: 'm' }, response_id: 'r' }] },
  { kind: 'verifier' },
])('a record that Gym refuses is refused here: %j', (record) => {
  expect(acceptedByGym(bundle([record]))).toBe(false);
  expect(accepted(bundle([record]))).toBe(false);
});

test('a model call is named by its id, or by server and response id together', () => {
  const refs = (...calls: object[]) => bundle([{ kind: 'agent_invocation', invocation_id: 'a', model_calls: calls }]);
  expect(accepted(refs(ref, { model_call_id: 'x' }))).toBe(true);
  for (const call of [{}, { response_id: 'r' }, { model_ref: ref.model_ref }]) expect(accepted(refs(call))).toBe(false);
});
