import { z } from 'zod';

// Mirrored from nemo-gym 0.7.0 nemo_gym/rollout_observability.py, field by field; strict there, so nothing is added here.

const seconds = z.number().nonnegative();
const nullish = <T extends z.ZodType>(schema: T) => schema.nullable().optional();

const ModelCallRef = z
  .strictObject({
    model_call_id: nullish(z.string()),
    model_ref: nullish(z.strictObject({ type: z.literal('responses_api_models'), name: z.string() })),
    response_id: nullish(z.string()),
  })
  .refine((ref) => ref.model_call_id != null || (ref.model_ref != null && ref.response_id != null), {
    error: 'needs model_call_id, or model_ref and response_id',
  });

const AgentInvocation = z.strictObject({
  kind: z.literal('agent_invocation'),
  invocation_id: z.string(),
  parent_invocation_id: nullish(z.string()),
  spawned_by_tool_call_id: nullish(z.string()),
  status: z.enum(['completed', 'failed', 'incomplete', 'unknown']).optional(),
  duration_ms: nullish(seconds),
  error_type: nullish(z.string()),
  model_calls: z.array(ModelCallRef).optional(),
  conversation: z.array(z.record(z.string(), z.json())).optional(),
});

const ToolCall = z.strictObject({
  kind: z.literal('tool_call'),
  invocation_id: z.string(),
  tool_call_id: z.string(),
  sandbox_id: nullish(z.string()),
  tool_name: nullish(z.string()),
  started_at: nullish(z.number()),
  completed_at: nullish(z.number()),
  duration_ms: nullish(seconds),
  timing_source: nullish(z.enum(['executor', 'artifact', 'harness'])),
  status: z.enum(['completed', 'failed', 'timeout', 'cancelled', 'incomplete', 'unknown']).optional(),
  error_type: nullish(z.string()),
});

const ContextCompaction = z.strictObject({
  kind: z.literal('context_compaction'),
  invocation_id: z.string(),
  observed_at: nullish(z.number()),
  trigger: nullish(z.string()),
  tokens_before: nullish(z.number().int().nonnegative()),
  tokens_after: nullish(z.number().int().nonnegative()),
  outcome: z.enum(['completed', 'failed', 'aborted', 'unknown']).optional(),
  summary: nullish(z.string()),
  first_kept_item_id: nullish(z.string()),
  before_model_call: nullish(ModelCallRef),
  model_calls: z.array(ModelCallRef).optional(),
  after_model_call: nullish(ModelCallRef),
});

const SandboxObservation = z.strictObject({
  kind: z.literal('sandbox'),
  role: z.enum(['agent', 'verifier', 'environment']),
  provider: nullish(z.string()),
  sandbox_id: nullish(z.string()),
  outcome: z.enum(['completed', 'failed', 'timeout', 'oom', 'sandbox_error', 'cancelled', 'unknown']).optional(),
  exit_code: nullish(z.number().int()),
  wall_time_s: nullish(seconds),
  cpu_time_s: nullish(seconds),
  peak_memory_mib: nullish(seconds),
  resource_usage_source: nullish(z.string()),
  error_type: nullish(z.string()),
});

/** What is known to be missing from a record. */
export const ObservationGap = z.strictObject({
  code: z.string(),
  invocation_id: nullish(z.string()),
  detail: nullish(z.string()),
});
export type ObservationGap = z.infer<typeof ObservationGap>;

export const ObservationRecord = z.discriminatedUnion('kind', [
  AgentInvocation,
  ToolCall,
  ContextCompaction,
  SandboxObservation,
]);
export type ObservationRecord = z.infer<typeof ObservationRecord>;

/**
 * Everything recorded of one session, built at close.
 *
 * @see nemo-gym 0.7.0 `AgentObservationBundle`
 */
export const ObservationBundle = z.strictObject({
  source: z.string(),
  records: z.array(ObservationRecord),
  gaps: z.array(ObservationGap),
});
export type ObservationBundle = z.infer<typeof ObservationBundle>;
