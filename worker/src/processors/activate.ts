import {
  type Activate,
  FleetError,
  isBorrowed,
  isMcpGrant,
  type ObservationGap,
  reasonOf,
  sandboxUser,
  type Scripts,
  type Seed,
} from '@hermes-fleet/shared';
import { Broker } from '../broker/broker.ts';
import { stateFolder } from '../broker/shell-wrapper.ts';
import { onAborted } from '../cancellation.ts';
import type { Backoff } from '../capture/backoff.ts';
import { Budget } from '../capture/budget.ts';
import { Journal, readJournal } from '../capture/journal.ts';
import { McpCalls } from '../capture/mcp-calls.ts';
import { ModelCalls } from '../capture/model-calls.ts';
import type { Command, Outcome } from '../command.ts';
import type { Config } from '../config.ts';
import type { Engine } from '../engine.ts';
import { Activation, type ActivationEnd } from '../hermes/activation.ts';
import { conversationOf, jobOf } from '../hermes/configuration.ts';
import { stopInside } from '../hermes/inside.ts';
import { runnerOf } from '../hermes/session-runner.ts';
import { activationBody } from '../hermes/response.ts';
import { trajectoryOf } from '../hermes/trajectory.ts';
import { type Verdict, verdictOf } from '../hermes/verdict.ts';
import { isLostSandbox, type Sandbox } from '../sandbox/provider.ts';
import { watchSandbox } from '../sandbox/watch.ts';
import { parseDescriptor, type SessionDescriptor } from '../session-descriptor.ts';
import { Stopwatch } from '../stopwatch.ts';

export interface ActivateDeps {
  readonly scripts: Scripts;
  readonly config: Config;
  readonly backoff: Backoff;
  readonly engineOf: (id: string) => Engine | undefined;
}

/** One activation on its way, and what is known of it so far. */
interface Work {
  readonly command: Command;
  readonly deps: ActivateDeps;
  readonly seed: Seed;
  readonly activate: Activate;
  readonly descriptor: SessionDescriptor;
  readonly journal: Journal;
  readonly watch: Stopwatch;
  readonly gaps: ObservationGap[];
}

/** Runs Hermes once in the session. However it ends, the result is built from the record. */
export async function activate(command: Command, deps: ActivateDeps): Promise<Outcome> {
  const { view, cancellation } = command;
  const { config, scripts } = deps;
  const descriptor = parseDescriptor(view.descriptor);
  if (descriptor === undefined) return { class: 'infra', code: 'sandbox_lost', body: null, isSandboxLost: true };
  const seed = JSON.parse(view.seedPayload) as Seed;
  const journal = new Journal({
    scripts,
    at: command.at,
    commandId: command.commandId,
    number: command.number,
    fence: view.fence,
    deadline: view.deadline,
    cancellation,
    permissionMs: config.FLEET_LOCK_MS,
    keepMs: config.FLEET_HOLD_MS + config.FLEET_RECEIPT_MS,
  });
  const work: Work = {
    command,
    deps,
    seed,
    activate: JSON.parse(view.payload) as Activate,
    descriptor,
    journal,
    watch: new Stopwatch(),
    gaps: [...descriptor.gaps],
  };
  if (view.verdict === 'run')
    cancellation.abortAfter(
      seed.timeouts.activation_s * 1000,
      'incomplete/wall_time',
      `the activation was not done within ${seed.timeouts.activation_s} s`,
    );
  let end: ActivationEnd | undefined;
  let failure: FleetError | undefined;
  let modelFailure: FleetError | undefined;
  try {
    ({ end, modelFailure } = await inSandbox(work));
  } catch (error) {
    failure = error instanceof FleetError ? error : new FleetError('infra/internal', reasonOf(error), { cause: error });
  }
  const aborted = cancellation.reason ?? failure;
  if (aborted?.code === 'internal/fenced') return { class: 'infra', code: 'worker_lost', body: null };
  return await outcomeOf(work, { end, aborted, modelFailure });
}

/** Everything between taking the sandbox over and leaving it; nothing of the run is alive afterwards. */
async function inSandbox(
  work: Work,
): Promise<{ end: ActivationEnd | undefined; modelFailure: FleetError | undefined }> {
  const { command, deps, seed, descriptor, journal, watch, gaps } = work;
  const { view, cancellation } = command;
  const engine = deps.engineOf(view.engine);
  if (engine === undefined) throw new FleetError('infra/internal', `this worker does not serve engine ${view.engine}`);
  const { signal } = cancellation;
  const sandbox = await engine.provider.connect(descriptor.box, {
    signal: view.verdict === 'run' ? signal : AbortSignal.timeout(deps.config.FLEET_LOCK_MS),
  });
  const user = sandboxUser(seed.sandbox);
  await using broker = new Broker({
    sandbox,
    journal,
    sessionKey: command.at.key,
    number: command.number,
    epoch: epochOf(command),
    user,
    signal,
  });
  // Only a command that was begun before can have left something, or somebody who may still come back.
  if (view.begins > 1)
    await watch.time('take_over', async () => {
      if (!(await takeOver(broker, journal)))
        gaps.push({ code: 'sandbox_tampered', detail: 'files of the fleet’s own in the sandbox were changed' });
      if (descriptor.inside !== null)
        await stopInside({ sandbox, sessionKey: command.at.key, user }, `${command.number}.*`);
    });
  if (view.verdict !== 'run') throw verdictError(view.verdict, view.code);
  using mcp = await watch.time(
    'mcp',
    async () =>
      await McpCalls.connect(seed.tool_accesses.filter(isMcpGrant), {
        connectMs: seed.timeouts.connect_s * 1000,
        toolMs: seed.timeouts.tool_s * 1000,
        signal,
        journal,
      }),
  );
  for (const access of seed.tool_accesses)
    if (!isMcpGrant(access))
      gaps.push({ code: 'grant_unsupported', detail: `grant "${access.name}" (${access.kind}) was left out` });
  gaps.push(...mcp.gaps);
  if (mcp.names.length > 0) await journal.event({ kind: 'mcp_servers', servers: mcp.tools });
  await using runner = await watch.time(
    'runner',
    async () =>
      await runnerOf({
        sandbox,
        pool: engine.runners,
        hermes: descriptor.inside,
        sessionKey: command.at.key,
        user,
        run: runOf(command),
        signal,
      }),
  );
  const model = modelCalls(work);
  const activation = new Activation({
    runner: runner.channel,
    home: homeOf(command),
    job: job(work, sandbox, mcp.names),
    model,
    mcp,
    broker,
    journal,
    cancellation,
    toolTimeoutS: seed.timeouts.tool_s,
    idleMs: seed.budgets.idle_time_s === undefined ? undefined : seed.budgets.idle_time_s * 1000,
  });
  // At once, and not when the runner has gone: a command that ignores the runner's end must not outlive the cancel.
  let killed: Promise<void> | undefined;
  using _kill = onAborted(signal, () => {
    killed = broker
      .killAll()
      .catch((error: unknown) =>
        command.log.error({ reason: reasonOf(error) }, 'processes of an ended activation may be alive'),
      );
  });
  using _watch = watchSandbox(sandbox, deps.config.FLEET_SANDBOX_WATCH_MS, cancellation);
  const end = await watch.time('agent', async () => await activation.run());
  await killed;
  return { end, modelFailure: model.rootFailure };
}

/** The sandbox's word that somebody newer is at work there is the agent's to forge; the record's is not. */
async function takeOver(broker: Broker, journal: Journal): Promise<boolean> {
  try {
    await broker.takeOver();
    return true;
  } catch (error) {
    if (!(error instanceof FleetError) || error.code !== 'internal/fenced') throw error;
    await journal.event({ kind: 'epoch_forged' });
    return false;
  }
}

const epochOf = ({ view }: Command): string => view.fence.slice(0, view.fence.indexOf('.'));

const runOf = (command: Command): string => `${command.number}.${epochOf(command)}`;

function verdictError(verdict: 'cancelled' | 'lost', code: string): FleetError {
  if (verdict === 'lost')
    return new FleetError(
      'infra/worker_lost',
      'its worker was lost after tool or MCP calls had begun, which are not repeated',
    );
  return new FleetError(
    code === 'by_close' ? 'cancelled/by_close' : code === 'expired' ? 'cancelled/expired' : 'cancelled/by_caller',
    `cancelled (${code})`,
  );
}

function modelCalls({ command, deps, seed, activate: request, journal }: Work): ModelCalls {
  const { config, backoff } = deps;
  const { credential } = seed.model;
  const token = credential === undefined ? undefined : config.credentials.get(credential);
  // The worker of the seed had it; this one may be set up otherwise.
  if (credential !== undefined && token === undefined)
    throw new FleetError(
      'infra/credential',
      `this worker has no credential "${credential}" (FLEET_CREDENTIAL_${credential})`,
    );
  return new ModelCalls({
    model: seed.model,
    baseUrl: request.base_url ?? seed.model.base_url,
    credential: token,
    tries: config.FLEET_MODEL_TRIES,
    timeoutMs: seed.timeouts.model_call_s * 1000,
    backoff,
    budget: new Budget(seed.budgets, request.request.max_output_tokens ?? undefined),
    journal,
    cancellation: command.cancellation,
    log: command.log,
  });
}

/** The same for every worker that runs it, since it may show up in a prompt; another one only when it is begun again. */
function homeOf({ at, number, view }: Command): string {
  return `${at.key.slice(0, 16)}n${number}${view.begins > 1 ? `b${view.begins}` : ''}`;
}

function job(
  { command, seed, activate: request, descriptor }: Work,
  sandbox: Sandbox,
  servers: readonly string[],
): { head: object; body: Buffer } {
  const day = new Date(descriptor.created_at).toISOString().slice(0, 10);
  const rollout = seed.identity?.rollout_id ?? command.at.key;
  return jobOf({
    seed,
    request: request.request,
    conversation: conversationOf(seed, request.request),
    sandbox,
    tempDir: tempDirOf(seed, command, sandbox),
    probe: descriptor.probe,
    servers,
    pin: { now: `${day}T12:00:00+00:00`, seed: `${rollout}.${command.number}` },
  });
}

/** What is not ours alone must not keep files of ours; what is, has the folder that Hermes itself would take. */
function tempDirOf({ sandbox: spec }: Seed, { at }: Command, sandbox: Sandbox): string {
  return isBorrowed(spec) ? stateFolder(at.key, sandbox.temporary) : (sandbox.temporary ?? '/tmp');
}

/** Verdict and body, read back from the journal: what is not in it did not happen. */
async function outcomeOf(
  work: Work,
  facts: {
    readonly end: ActivationEnd | undefined;
    readonly aborted: FleetError | undefined;
    readonly modelFailure: FleetError | undefined;
  },
): Promise<Outcome> {
  const { command, deps, seed, activate: request, descriptor, watch } = work;
  const { view, at, number } = command;
  const record = await readJournal(deps.scripts, at.key, number);
  // A run that was not let go on has nothing under its own fence: the last one that acted counts.
  const trajectory = trajectoryOf(record, view.verdict === 'run' ? view.fence : undefined);
  const end = facts.end ?? { exit: { rc: null, oom: false, detail: '' }, claim: undefined };
  const verdict: Verdict = verdictOf({ aborted: facts.aborted, end, trajectory, modelFailure: facts.modelFailure });
  const body = activationBody({
    seed,
    activate: request,
    responseId: `${at.key.slice(0, 12)}_${number}`,
    trajectory,
    verdict,
    claim: end.claim,
    historyLength: conversationOf(seed, request.request).history.length,
    isolated: descriptor.inside === null && deps.engineOf(view.engine)?.provider.isolates === true,
    hermesVersion: descriptor.hermes_version,
    gaps: work.gaps,
    timings: watch.read(),
  });
  const isSandboxLost = facts.aborted !== undefined && isLostSandbox(facts.aborted);
  return {
    class: verdict.class,
    code: verdict.class === 'ok' ? '' : verdict.code,
    body,
    ...(isSandboxLost ? { isSandboxLost } : {}),
    ...(facts.aborted === undefined ? {} : { error: facts.aborted }),
  };
}
