import { createHash } from 'node:crypto';
import { type CloseBody, type Scripts, type Seed, StoredResult, WIRE_VERSION } from '@hermes-fleet/shared';
import { deadlineSignal } from '../cancellation.ts';
import { readJournal } from '../capture/journal.ts';
import type { Command, Outcome } from '../command.ts';
import type { Config } from '../config.ts';
import type { Engine } from '../engine.ts';
import { observationBundle, type ObservedActivation } from '../hermes/observations.ts';
import { trajectoryOf } from '../hermes/trajectory.ts';
import { parseDescriptor, type SessionDescriptor } from '../session-descriptor.ts';
import { Stopwatch } from '../stopwatch.ts';
import { lostBefore, NO_SANDBOX, type Settled, settleSandbox } from './settle-sandbox.ts';

const KILLED = 137;

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
  const activations: ObservedActivation[] = [];
  for (const { id, number } of ended.activations)
    activations.push({ id, trajectory: trajectoryOf(await readJournal(deps.scripts, at.key, number)) });
  const settled = await settle(command, deps, { seed, descriptor, ended, activations, signal: limit.signal, watch });
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

async function settle(
  command: Command,
  deps: CloseDeps,
  session: {
    readonly seed: Seed | undefined;
    readonly descriptor: SessionDescriptor | undefined;
    readonly ended: Awaited<ReturnType<typeof sessionEnd>>;
    readonly activations: readonly ObservedActivation[];
    readonly signal: AbortSignal;
    readonly watch: Stopwatch;
  },
): Promise<Settled> {
  const { seed, descriptor, ended, activations, signal, watch } = session;
  if (descriptor === undefined || seed === undefined) return NO_SANDBOX;
  const engine = deps.engineOf(command.view.engine);
  if (engine === undefined) return lostBefore(descriptor, ended.session.code);
  const hadKills = activations.some(({ trajectory }) =>
    trajectory.toolActs.some(({ outcome }) => outcome?.['code'] === KILLED),
  );
  const sessionClass = ended.session.class;
  return await settleSandbox({ command, engine, seed, descriptor, signal, watch, sessionClass, hadKills });
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
