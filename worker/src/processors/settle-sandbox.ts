import {
  type CloseBody,
  FleetError,
  isBorrowed,
  reasonOf,
  type ResultClass,
  sandboxUser,
  type Seed,
} from '@hermes-fleet/shared';
import { killByMark, stateFolder } from '../broker/shell-wrapper.ts';
import type { Command } from '../command.ts';
import type { Engine } from '../engine.ts';
import { stopInside } from '../hermes/inside.ts';
import type { ObservedSandbox } from '../hermes/observations.ts';
import { isLostSandbox, type Sandbox } from '../sandbox/provider.ts';
import type { SessionDescriptor } from '../session-descriptor.ts';
import type { Stopwatch } from '../stopwatch.ts';
import { collect } from './collect.ts';

const CONTROL_MS = 15_000;

/** What became of a session's sandbox at its close. */
export interface Settled {
  readonly state: CloseBody['sandbox'];
  readonly collected: CloseBody['collected'];
  readonly observed: ObservedSandbox | undefined;
  readonly failure: FleetError | undefined;
  /** Why something that was to be collected is missing; the sandbox was settled all the same. */
  readonly notCollected?: string | undefined;
}

/** A session whose sandbox was lost before its close: there is nothing to do any more, but to say so. */
export function lostBefore(descriptor: SessionDescriptor, code: string): Settled {
  const outcome = code === 'sandbox_oom' ? 'oom' : 'sandbox_error';
  return { ...NO_SANDBOX, observed: observed({ descriptor }, outcome) };
}

export const NO_SANDBOX: Settled = { state: 'none', collected: null, observed: undefined, failure: undefined };

export interface Settling {
  readonly command: Command;
  readonly engine: Engine;
  readonly seed: Seed;
  readonly descriptor: SessionDescriptor;
  readonly signal: AbortSignal;
  readonly watch: Stopwatch;
  readonly sessionClass: ResultClass;
  /** Whether a command of the session was killed, by whomever. */
  readonly hadKills: boolean;
}

/**
 * Ends what the session left running, takes what is to be kept, and removes the sandbox, or lets go of a borrowed one,
 * which its owner goes on using.
 */
export async function settleSandbox(settling: Settling): Promise<Settled> {
  const { command, engine, seed, descriptor, signal } = settling;
  const isOurs = !isBorrowed(seed.sandbox);
  let sandbox: Sandbox;
  try {
    sandbox = await engine.provider.connect(descriptor.box, { signal });
  } catch (error) {
    if (!(error instanceof FleetError) || !isLostSandbox(error))
      return { ...NO_SANDBOX, state: isOurs ? 'left_to_reaper' : 'disconnected', failure: typed(error) };
    // A box that is gone needs no removing; one that stopped does.
    if (isOurs) await removeByName(engine, command.view.lease);
    return {
      ...NO_SANDBOX,
      state: isOurs ? 'removed' : 'disconnected',
      observed: observed(settling, error.code === 'infra/sandbox_oom' ? 'oom' : 'sandbox_error'),
      notCollected: seed.collect === undefined ? undefined : `nothing could be collected (${error.message})`,
    };
  }
  return isOurs ? await settleOwned(settling, sandbox) : await settleBorrowed(settling, sandbox);
}

async function settleOwned(settling: Settling, sandbox: Sandbox): Promise<Settled> {
  const taken = await collected(settling, sandbox, async () => await stopSession(settling, sandbox));
  const usage = await sandbox.usage?.({ countsOom: settling.hadKills }).catch(() => undefined);
  try {
    await settling.watch.time('remove', async () => await sandbox.remove());
  } catch (error) {
    return {
      state: 'left_to_reaper',
      ...taken,
      observed: observed(settling, 'unknown', sandbox, usage),
      failure: typed(error),
    };
  }
  const { sessionClass } = settling;
  const outcome = (usage?.oomKills ?? 0) > 0 ? 'oom' : sessionClass === 'cancelled' ? 'cancelled' : 'completed';
  return { state: 'removed', ...taken, observed: observed(settling, outcome, sandbox, usage), failure: undefined };
}

/** Nothing of ours may run on in it, and no file of ours is left but static tools that another session may be using. */
async function settleBorrowed(settling: Settling, sandbox: Sandbox): Promise<Settled> {
  const { watch, sessionClass, command } = settling;
  try {
    await watch.time('stop', async () => await stopSession(settling, sandbox));
    const taken = await collected(settling, sandbox, async () => undefined);
    await control(settling, sandbox, `rm -rf ${stateFolder(command.at.key, sandbox.temporary)}`);
    await sandbox.remove();
    const outcome = sessionClass === 'cancelled' ? 'cancelled' : 'completed';
    return { state: 'disconnected', ...taken, observed: observed(settling, outcome, sandbox), failure: undefined };
  } catch (error) {
    const unknown = observed(settling, 'unknown', sandbox);
    return { state: 'disconnected', collected: null, observed: unknown, failure: typed(error) };
  }
}

async function collected(
  { seed, signal, watch, command }: Settling,
  sandbox: Sandbox,
  stop: () => Promise<void>,
): Promise<Pick<Settled, 'collected' | 'notCollected'>> {
  const { collect: wanted } = seed;
  if (wanted === undefined) return { collected: null };
  try {
    // What is collected must not change meanwhile.
    await watch.time('stop', stop);
    const collecting = { user: sandboxUser(seed.sandbox), signal, closeMs: seed.timeouts.close_s * 1000 };
    return { collected: await watch.time('collect', async () => await collect(sandbox, wanted, collecting)) };
  } catch (error) {
    command.log.warn({ reason: reasonOf(error) }, 'not everything could be collected');
    return { collected: null, notCollected: `not everything could be collected (${reasonOf(error)})` };
  }
}

/** Every process that any activation of the session left behind. */
async function stopSession(settling: Settling, sandbox: Sandbox): Promise<void> {
  const { command, seed, descriptor } = settling;
  const { key: sessionKey } = command.at;
  if (descriptor.inside !== null) await stopInside({ sandbox, sessionKey, user: sandboxUser(seed.sandbox) }, '*');
  await control(settling, sandbox, killByMark(`HF_ACT=${sessionKey.slice(0, 12)}.`, '$$'));
}

async function control({ seed, signal }: Settling, sandbox: Sandbox, script: string): Promise<void> {
  const { path, pathSuffix } = sandbox.shell;
  await sandbox.exec({
    argv: [path, '-c', pathSuffix === undefined ? script : `PATH=$PATH:${pathSuffix}\n${script}`],
    user: sandboxUser(seed.sandbox),
    signal,
    maxBytes: 4096,
    deadlineMs: CONTROL_MS,
  });
}

function observed(
  { descriptor }: Pick<Settling, 'descriptor'>,
  outcome: ObservedSandbox['outcome'],
  sandbox?: Sandbox,
  usage?: ObservedSandbox['usage'],
): ObservedSandbox {
  return {
    provider: descriptor.provider,
    id: sandbox?.id ?? descriptor.sandbox_id,
    outcome,
    wallTimeS: (Date.now() - descriptor.created_at) / 1000,
    usage,
  };
}

const typed = (error: unknown): FleetError =>
  error instanceof FleetError ? error : new FleetError('infra/internal', reasonOf(error), { cause: error });

async function removeByName(engine: Engine, name: string): Promise<void> {
  const boxes = await engine.provider.list();
  await boxes.find((box) => box.name === name)?.remove();
}
