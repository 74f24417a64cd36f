import { createHash } from 'node:crypto';
import {
  type CloseBody,
  FleetError,
  isBorrowed,
  reasonOf,
  type ResultClass,
  type Scripts,
  type Seed,
  StoredResult,
  WIRE_VERSION,
} from '@hermes-fleet/shared';
import { killByMark } from '../broker/shell-wrapper.ts';
import { deadlineSignal } from '../cancellation.ts';
import { readJournal } from '../capture/journal.ts';
import type { Command, Outcome } from '../command.ts';
import type { Config } from '../config.ts';
import type { Engine } from '../engine.ts';
import { observationBundle, type ObservedActivation, type ObservedSandbox } from '../hermes/observations.ts';
import { trajectoryOf } from '../hermes/trajectory.ts';
import type { Sandbox } from '../sandbox/provider.ts';
import { parseDescriptor, type SessionDescriptor } from '../session-descriptor.ts';
import { Stopwatch } from '../stopwatch.ts';
import { collect } from './collect.ts';

export interface CloseDeps {
  readonly scripts: Scripts;
  readonly config: Config;
  readonly engineOf: (id: string) => Engine | undefined;
}

/** Ends what still runs in the session, takes what is to be kept, gives the sandbox back or removes it, and reports. */
export async function close(command: Command, deps: CloseDeps): Promise<Outcome> {
  const { view, at } = command;
  const watch = new Stopwatch();
  const seed = view.seedPayload === '' ? undefined : (JSON.parse(view.seedPayload) as Seed);
  const descriptor = parseDescriptor(view.descriptor);
  const seconds = seed?.timeouts.close_s ?? 60;
  using limit = deadlineSignal(seconds * 1000, 'infra/timeout_close', `the close was not done within ${seconds} s`);
  const ended = await sessionEnd(deps.scripts, at.key);
  const settled = await settleSandbox(command, deps, {
    seed,
    descriptor,
    signal: limit.signal,
    watch,
    sessionClass: ended.session.class,
  });
  const activations: ObservedActivation[] = [];
  for (const { id, number } of ended.activations)
    activations.push({ id, trajectory: trajectoryOf(await readJournal(deps.scripts, at.key, number)) });
  const body: CloseBody = {
    wire_version: WIRE_VERSION,
    message: settled.failure?.message ?? settled.notCollected ?? null,
    session: ended.session,
    observations: observationBundle(activations, settled.observed),
    collected: settled.collected,
    sandbox: settled.state,
    receipt: createHash('sha256').update(`${at.key}.${command.commandId}`).digest('hex').slice(0, 32),
    timings_ms: watch.read(),
  };
  const forget = async (): Promise<void> => {
    const { keys, redis } = deps.scripts;
    const names = [keys.messages(at.key), ...ended.activations.map(({ number }) => keys.journal(at.key, number))];
    await Promise.all(names.map(async (name) => await redis.pexpire(name, deps.config.FLEET_RECEIPT_MS)));
  };
  if (settled.failure === undefined) return { class: 'ok', code: '', body, settled: forget };
  return { class: 'infra', code: settled.failure.shortCode, body, error: settled.failure };
}

interface Settled {
  readonly state: CloseBody['sandbox'];
  readonly collected: CloseBody['collected'];
  readonly observed: ObservedSandbox | undefined;
  readonly failure: FleetError | undefined;
  /** Why something that was to be collected is missing; the sandbox was settled all the same. */
  readonly notCollected?: string | undefined;
}

async function settleSandbox(
  command: Command,
  deps: CloseDeps,
  options: {
    readonly seed: Seed | undefined;
    readonly descriptor: SessionDescriptor | undefined;
    readonly signal: AbortSignal;
    readonly watch: Stopwatch;
    readonly sessionClass: ResultClass;
  },
): Promise<Settled> {
  const { seed, descriptor, signal, watch } = options;
  const engine = deps.engineOf(command.view.engine);
  const none: Settled = { state: 'none', collected: null, observed: undefined, failure: undefined };
  if (descriptor === undefined || seed === undefined || engine === undefined) return none;
  const observed = (
    outcome: ObservedSandbox['outcome'],
    sandbox?: Sandbox,
    usage?: ObservedSandbox['usage'],
  ): ObservedSandbox => ({
    provider: descriptor.provider,
    id: sandbox?.id ?? command.view.lease,
    outcome,
    wallTimeS: (Date.now() - descriptor.created_at) / 1000,
    usage,
  });
  let collected: CloseBody['collected'] = null;
  let notCollected: string | undefined;
  let sandbox: Sandbox;
  try {
    sandbox = await engine.provider.connect(descriptor.box, { signal });
  } catch (error) {
    // A box that is gone needs no removing; one that stopped does.
    if (!(error instanceof FleetError) || error.code !== 'infra/sandbox_lost')
      return { ...none, state: 'left_to_reaper', failure: typed(error) };
    await removeByName(engine, command.view.lease);
    return { ...none, state: 'removed', observed: observed('sandbox_error') };
  }
  const user = isBorrowed(seed.sandbox) ? undefined : seed.sandbox.user;
  try {
    if (seed.collect !== undefined) {
      const wanted = seed.collect;
      await watch.time('stop', async () => await stopEverything(sandbox, command.at.key, user, signal));
      collected = await watch.time('collect', async () => await collect(sandbox, wanted, { user, signal }));
    }
  } catch (error) {
    notCollected = `not everything could be collected (${reasonOf(error)})`;
    command.log.warn({ reason: reasonOf(error) }, 'not everything could be collected');
  }
  const usage = await sandbox.usage?.().catch(() => undefined);
  try {
    await watch.time('remove', async () => await sandbox.remove());
  } catch (error) {
    return { state: 'left_to_reaper', collected, observed: observed('unknown', sandbox, usage), failure: typed(error) };
  }
  const outcome = (usage?.oomKills ?? 0) > 0 ? 'oom' : options.sessionClass === 'cancelled' ? 'cancelled' : 'completed';
  return { state: 'removed', collected, observed: observed(outcome, sandbox, usage), failure: undefined, notCollected };
}

const typed = (error: unknown): FleetError =>
  error instanceof FleetError ? error : new FleetError('infra/internal', reasonOf(error), { cause: error });

async function removeByName(engine: Engine, name: string): Promise<void> {
  const boxes = await engine.provider.list();
  await boxes.find((box) => box.name === name)?.remove();
}

/** Every process that any activation of the session left behind; collecting must not race them. */
async function stopEverything(
  sandbox: Sandbox,
  sessionKey: string,
  user: string | undefined,
  signal: AbortSignal,
): Promise<void> {
  const { path, pathSuffix } = sandbox.shell;
  const script = killByMark(`HF_ACT=${sessionKey.slice(0, 12)}.`, '$$');
  await sandbox.exec({
    argv: [path, '-c', pathSuffix === undefined ? script : `PATH=$PATH:${pathSuffix}\n${script}`],
    user,
    signal,
    maxBytes: 4096,
    deadlineMs: 15_000,
  });
}

/** The session's verdict: its last activation's, else that of the seed that failed, else `cancelled`. */
async function sessionEnd(
  scripts: Scripts,
  key: string,
): Promise<{
  readonly session: CloseBody['session'];
  readonly activations: readonly { readonly id: string; readonly number: string }[];
}> {
  const [record, results] = await Promise.all([
    scripts.redis.hgetall(scripts.keys.record(key)),
    scripts.redis.hgetall(scripts.keys.storedResults(key)),
  ]);
  const activations = Object.entries(record)
    .flatMap(([field, value]) => {
      const [, number, kind] = field.startsWith('c:') ? value.split(':') : [];
      return kind === 'a' && number !== undefined ? [{ id: field.slice(2), number }] : [];
    })
    .toSorted((one, other) => Number(one.number) - Number(other.number));
  const decisive =
    activations
      .toReversed()
      .map(({ id }) => results[id])
      .find((result) => result !== undefined) ?? results['seed'];
  const stored = decisive === undefined ? undefined : StoredResult.parse(JSON.parse(decisive));
  const isSeedOk = stored !== undefined && decisive === results['seed'] && stored.class === 'ok';
  const session =
    stored === undefined || isSeedOk
      ? { class: 'cancelled' as const, code: 'by_close' }
      : { class: stored.class, code: stored.code === '' ? 'done' : stored.code };
  return { session, activations };
}
