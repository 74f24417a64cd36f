import type { Configuration } from './configurations.ts';
import { believesToOwn, commands, field, isOpen, type State } from './state.ts';

/** What is promised about results; after a fail-over only that there is one. */
function wrongResult(state: State): string | undefined {
  if (state.failedOver) return undefined;
  const seen = new Set<string>();
  for (const { command, resultClass } of state.published) {
    if (seen.has(command)) return `two results of ${command}`;
    seen.add(command);
    if (state.cancelled[command] && resultClass !== 'cancelled')
      return `accepted cancel of ${command} ended ${resultClass}`;
  }
  for (const [id, command] of commands(state))
    if (!isOpen(command) && !seen.has(id)) return `${id} has ended without a result`;
  return undefined;
}

function wrongSession(state: State): string | undefined {
  const status = field(state, 'st');
  const lease = field(state, 'le');
  const known = [...commands(state)];
  const open = known.find(([, command]) => isOpen(command));
  if (status === 'z' && open !== undefined) return `closed session with open ${open[0]}`;
  if (status === 'r' && lease !== undefined && state.sandboxes[lease] === undefined && !state.failedOver)
    if (!known.some(([, command]) => command.kind === 'c')) return 'ready session without its sandbox';
  if (status === 'f' && lease !== undefined) return 'failed session holds a sandbox';
  const waiting = known.find(([, command]) => command.kind === 'a' && isOpen(command));
  if (status === 'f' && waiting !== undefined) return `failed session with open ${waiting[0]}`;
  if (status !== undefined && status !== 'z' && state.stored.due === '') return 'open session that nobody looks after';
  return undefined;
}

function wrongOwner(state: State, configuration: Configuration): string | undefined {
  const running = field(state, 'run');
  if (running === undefined) return undefined;
  const letter = commands(state).get(running)?.letter;
  const fence = field(state, 'fe');
  if (state.stored.due !== 'soon' && !state.failedOver) return 'dispatched command is looked at too late';
  if (letter === 'b' && fence === undefined) return 'begun command without a fence';
  if (letter === 'q' && (fence !== undefined || field(state, 'su') !== undefined))
    return 'dispatched command with a fence';
  if (configuration.noTakeover === true && letter === 'b')
    for (const run of state.runs)
      if (believesToOwn(run) && run.command === running && run.fence !== fence) return 'living owner was replaced';
  return undefined;
}

/** Why a state must never be reached, or undefined. */
export function violation(state: State, configuration: Configuration): string | undefined {
  if (state.wrong !== '') return state.wrong;
  const lost = state.published.find(({ resultClass }) => resultClass === 'infra');
  if (configuration.noLoss === true && lost !== undefined) return `infra result of ${lost.command}`;
  return wrongResult(state) ?? wrongSession(state) ?? wrongOwner(state, configuration);
}

/** Whether all that was accepted has ended, and what is closed left nothing behind. */
export function isSettled(state: State, configuration: Configuration): boolean {
  const { stored } = state;
  const isIdle = state.pending.length === 0 && state.runs.length === 0 && Object.keys(state.jobs).length === 0;
  const known = commands(state);
  if (!isIdle || state.submitted < configuration.plan.length || [...known.values()].some(isOpen)) return false;
  const status = field(state, 'st');
  if (state.expired && status !== 'z') return false;
  const leftLeases = stored.leases.h1.length + stored.leases.h2.length;
  const leftIndex = stored.bound.h1.length + stored.bound.h2.length + stored.due.length;
  if (status === 'z' && leftIndex > 0) return false;
  const close = field(state, 'cx');
  if (close === undefined) return true;
  // A close that failed for good may be repeated; until then its infra result is the end.
  if (status !== 'z' && known.get(close)?.letter !== 'n') return false;
  return Object.keys(state.sandboxes).length === 0 && leftLeases === 0;
}
