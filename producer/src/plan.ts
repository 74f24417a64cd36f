import {
  type ActivateInput,
  bodyDigest,
  type CloseInput,
  FleetError,
  type Identity,
  parseActivate,
  parseClose,
  parseSeed,
  reasonOf,
  type Seed,
  type SeedInput,
  type SubmitCommand,
} from '@hermes-fleet/shared';

const DEFAULT_BODY_BYTES = 64 * 1024 * 1024;

/** Commands of one session, accepted together and in this order: seed, activations, close. */
export interface Plan {
  readonly seed?: SeedInput;
  readonly activations?: readonly ActivateInput[];
  readonly close?: CloseInput;
}

export interface CheckedPlan {
  readonly sessionId: string;
  readonly seed: Seed | undefined;
  readonly identity: Identity | undefined;
  readonly commands: readonly SubmitCommand[];
  /** Models that activations name, to be held against that of a seed which is not in this plan. */
  readonly models: readonly string[];
}

/** @throws FleetError `refused/invalid`, `refused/grant_unsupported` or `refused/too_large` */
export function checkedPlan(plan: Plan, maxBodyBytes = DEFAULT_BODY_BYTES): CheckedPlan {
  const seed = plan.seed === undefined ? undefined : parseSeed(plan.seed);
  const activations = (plan.activations ?? []).map(parseActivate);
  const close = plan.close === undefined ? undefined : parseClose(plan.close);
  const bodies = [seed, ...activations, close].filter((body) => body !== undefined);
  const sessionId = bodies[0]?.session_id;
  if (sessionId === undefined) throw new FleetError('refused/invalid', 'a plan needs at least one command');
  if (bodies.some((body) => body.session_id !== sessionId))
    throw new FleetError('refused/invalid', 'the commands of a plan belong to one session');
  const named = bodies.flatMap(({ identity }) => (identity?.rollout_id === undefined ? [] : [identity]));
  const [identity] = named;
  if (named.some(({ rollout_id, attempt }) => rollout_id !== identity?.rollout_id || attempt !== identity?.attempt))
    throw new FleetError('refused/session_conflict', 'the commands of a plan name different rollouts or attempts');
  const models = activations.flatMap(({ request }) => request.model ?? []);
  if (seed !== undefined) checkModels(models, seed.model.name);
  const commands = [
    ...(seed === undefined ? [] : [commandOf('seed', 'seed', seed, maxBodyBytes)]),
    ...activations.map((activate) => commandOf('activate', activate.activation_id, activate, maxBodyBytes)),
    ...(close === undefined ? [] : [closeCommand(close.when)]),
  ];
  return { sessionId, seed, identity, commands, models: seed === undefined ? models : [] };
}

/** @throws FleetError `refused/invalid` */
export function checkModels(models: readonly string[], ofSession: string): void {
  if (models.some((model) => model !== ofSession))
    throw new FleetError(
      'refused/invalid',
      `activate is not valid: request.model: must equal the session's (${ofSession})`,
    );
}

function commandOf(kind: 'seed' | 'activate', commandId: string, body: object, maxBytes: number): SubmitCommand {
  const payload = jsonOf(kind, body);
  const size = Buffer.byteLength(payload);
  if (size > maxBytes)
    throw new FleetError('refused/too_large', `the ${kind} is ${size} bytes; ${maxBytes} are allowed`);
  return { kind, commandId, digest: bodyDigest(JSON.stringify(body, inOrder)), payload };
}

function jsonOf(kind: string, body: object): string {
  try {
    return JSON.stringify(body);
  } catch (error) {
    throw new FleetError('refused/invalid', `${kind} is not valid: it cannot be written as JSON (${reasonOf(error)})`, {
      cause: error,
    });
  }
}

/** JSON members have no order: a body that was written anew by another client is the same body. */
function inOrder(_name: string, value: unknown): unknown {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? Object.fromEntries(Object.entries(value).toSorted(([one], [other]) => (one < other ? -1 : 1)))
    : value;
}

/** A close has no body: its id and digest are fixed. */
export function closeCommand(when: 'now' | 'idle'): SubmitCommand {
  return { kind: 'close', commandId: 'close', digest: '-', payload: '', when };
}
