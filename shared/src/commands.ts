import { z } from 'zod';
import { FleetError } from './failure.ts';
import { ResponsesRequest } from './responses.ts';
import { Budgets, Collect, HermesSpec, ModelSpec, SandboxSpec, Timeouts } from './session-spec.ts';
import { refusalOf, ToolAccess } from './tool-access.ts';

/** Version of every stored document; within a major, fields are only added. */
export const WIRE_VERSION = '1.0';

const MAX_SESSION_ID_BYTES = 512;

/** Any text of 1 to 512 bytes. It never becomes part of a key, a job id, a path or a label: its digest does. */
export const SessionId = z
  .string()
  .min(1, 'must not be empty')
  .refine((id) => Buffer.byteLength(id) <= MAX_SESSION_ID_BYTES, {
    error: `must be ${MAX_SESSION_ID_BYTES} bytes at most`,
  })
  .refine((id) => id === Buffer.from(id).toString(), {
    error: 'must be well-formed Unicode (it holds half of a surrogate pair)',
  });

export const ReplyTo = z
  .string()
  .regex(/^[A-Za-z0-9._-]{1,128}$/, 'a results stream is named by 1 to 128 of A-Z, a-z, 0-9, ".", "_" and "-"');

/** Made by the caller, once per activation: repeating it joins or replays that activation. */
export const ActivationId = z
  .string()
  .regex(/^[A-Za-z0-9._-]{1,128}$/, 'an activation id is 1 to 128 of A-Z, a-z, 0-9, ".", "_" and "-"')
  .refine((id) => id !== 'seed' && !id.startsWith('close'), { error: 'must not be "seed" and not begin with "close"' });

/** Whose attempt at which task the session is. `rollout_id` and `attempt` guard later commands; the rest is carried to the results. */
export const Identity = z.strictObject({
  rollout_id: z.string().min(1).max(512).optional(),
  attempt: z.number().int().min(0).default(0),
  task_id: z.string().max(512).optional(),
  sweep_id: z
    .string()
    .regex(/^[A-Za-z0-9._-]{1,128}$/, 'a sweep id is 1 to 128 of A-Z, a-z, 0-9, ".", "_" and "-"')
    .optional(),
  group_id: z.string().max(512).optional(),
  labels: z.record(z.string().max(128), z.string().max(1024)).optional(),
});
export type Identity = z.infer<typeof Identity>;

export const Seed = z.strictObject({
  session_id: SessionId,
  reply_to: ReplyTo.default('default'),
  identity: Identity.optional(),
  sandbox: SandboxSpec,
  hermes: HermesSpec.default(() => HermesSpec.parse({})),
  model: ModelSpec,
  tool_accesses: z.array(ToolAccess).max(64).default([]),
  budgets: Budgets.default({}),
  timeouts: Timeouts.default(() => Timeouts.parse({})),
  collect: Collect.optional(),
});
export type Seed = z.infer<typeof Seed>;
export type SeedInput = z.input<typeof Seed>;

export const Activate = z.strictObject({
  session_id: SessionId,
  activation_id: ActivationId,
  request: ResponsesRequest,
  identity: Identity.optional(),
  /** Replaces the session's `model.base_url` for this activation (Gym's capture prefix). */
  base_url: ModelSpec.shape.base_url.optional(),
});
export type Activate = z.infer<typeof Activate>;
export type ActivateInput = z.input<typeof Activate>;

export const Close = z.strictObject({
  session_id: SessionId,
  identity: Identity.optional(),
  /** `now` cancels what runs and answers what waits; `idle` takes its turn behind it. */
  when: z.enum(['now', 'idle']).default('now'),
});
export type Close = z.infer<typeof Close>;
export type CloseInput = z.input<typeof Close>;

type Issue = z.core.$ZodIssue;
type Path = readonly PropertyKey[];

/** `path: message` of every issue, in one line. A union tells what is wrong with the branch that was meant. */
export function issuesOf(error: z.ZodError): string {
  return error.issues.flatMap((issue) => leavesOf(issue, [])).join('; ');
}

function leavesOf(issue: Issue, prefix: Path): string[] {
  const path = [...prefix, ...issue.path];
  if (issue.code === 'unrecognized_keys') return issue.keys.map((key) => line([...path, key], 'is not a known field'));
  if (issue.code === 'invalid_key') return issue.issues.map((inner) => line(path, inner.message));
  return issue.code === 'invalid_union' ? unionLeaves(issue, path) : [line(path, issue.message)];
}

function unionLeaves(issue: Extract<Issue, { code: 'invalid_union' }>, path: Path): string[] {
  if ('options' in issue && Array.isArray(issue.options)) return [line(path, expectedOneOf(issue.options))];
  const branches = issue.errors;
  const kinds = branches.map(wrongKind);
  if (kinds.length > 0 && kinds.every((kind) => kind !== undefined))
    return [line(path, `expected ${[...new Set(kinds.map(({ expected }) => expected))].join(' or ')}`)];
  const labels = branches.map(wrongLabel);
  const [first] = labels;
  if (first !== undefined && labels.every((label) => label?.path.join('.') === first.path.join('.')))
    return [line([...path, ...first.path], expectedOneOf(labels.flatMap((label) => label?.values ?? [])))];
  const best = branches.toSorted((one, other) => distance(one) - distance(other))[0] ?? [];
  return best.length === 0 ? [line(path, issue.message)] : best.flatMap((inner) => leavesOf(inner, path));
}

/** The branch wanted another kind of value altogether. */
const wrongKind = (branch: readonly Issue[]): Extract<Issue, { code: 'invalid_type' }> | undefined =>
  branch.find((issue) => issue.code === 'invalid_type' && issue.path.length === 0) as
    | Extract<Issue, { code: 'invalid_type' }>
    | undefined;

/** The branch is told by a field's one value, and the field has another. */
const wrongLabel = (branch: readonly Issue[]): Extract<Issue, { code: 'invalid_value' }> | undefined =>
  branch.find((issue) => issue.code === 'invalid_value' && issue.values.length === 1 && issue.path.length > 0) as
    | Extract<Issue, { code: 'invalid_value' }>
    | undefined;

/** How far a value is from a branch: the wrong kind outweighs a wrong label, and that any number of wrong fields. */
function distance(branch: readonly Issue[]): number {
  const weigh = (issue: Issue): number => {
    if (issue.code === 'unrecognized_keys') return issue.keys.length;
    if (issue.code === 'invalid_value') return issue.values.length === 1 ? 1000 : 1;
    if (issue.code !== 'invalid_type') return 1;
    return issue.path.length === 0 ? 1_000_000 : issue.expected === 'undefined' ? 1000 : 1;
  };
  return branch.reduce((sum, issue) => sum + weigh(issue), 0);
}

const expectedOneOf = (values: readonly unknown[]): string =>
  `expected one of ${values.map((value) => JSON.stringify(value)).join(', ')}`;

/** zod's words, as a lower-case clause. */
function line(path: Path, message: string): string {
  const clause = message.replace(/^(?:Invalid (?:input|option)|Too (?:small|big)): /, '');
  const where = path.length === 0 ? 'the body' : path.join('.');
  return `${where}: ${clause.charAt(0).toLowerCase()}${clause.slice(1)}`;
}

/**
 * Checks a body at the front door.
 *
 * @throws FleetError `refused/invalid`, naming each field at fault and its bound
 */
function parse<T extends z.ZodType>(schema: T, what: string, body: unknown): z.output<T> {
  const parsed = safely(what, () => schema.safeParse(body));
  if (parsed.success) return parsed.data;
  throw new FleetError('refused/invalid', `${what} is not valid: ${issuesOf(parsed.error)}`);
}

/** A body that is nested deeper than the stack, or within itself, is the caller's fault and not ours. */
function safely<T>(what: string, check: () => T): T {
  try {
    return check();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new FleetError('refused/invalid', `${what} is not valid: it is nested too deeply`, { cause: error });
  }
}

/** @throws FleetError `refused/invalid` or `refused/grant_unsupported` */
export function parseSeed(body: unknown): Seed {
  const seed = parse(Seed, 'seed', body);
  const refusal = refusalOf(seed.tool_accesses);
  if (refusal !== undefined) {
    const code = refusal.unsupported ? 'refused/grant_unsupported' : 'refused/invalid';
    throw new FleetError(code, `seed is not valid: tool_accesses.${refusal.index}: ${refusal.reason}`);
  }
  return seed;
}

/** @throws FleetError `refused/invalid` */
export function parseActivate(body: unknown): Activate {
  return parse(Activate, 'activate', body);
}

/** @throws FleetError `refused/invalid` */
export function parseClose(body: unknown): Close {
  return parse(Close, 'close', body);
}
