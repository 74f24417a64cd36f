import { setTimeout as sleep } from 'node:timers/promises';
import { taskOf } from './client-scripts.ts';
import type { ModelCall } from './model-server.ts';
import { callTool, type Completion, say, type Script, turnOf } from './model-replies.ts';

/** Tokens of every call of the family below. */
export const FAMILY_USAGE = { prompt_tokens: 100, completion_tokens: 10, total_tokens: 110 };

export const LATENCY_MS = 1000;

/** A command that does not end, ignores SIGTERM, and has a child that left its session and writes on and on. */
export const STUBBORN = `trap '' TERM
setsid sh -c "trap '' TERM; while :; do echo tick >>ticks; sleep 0.1; done" &
while :; do sleep 1; done
`;

/** What a seed of the family needs. */
export const FAMILY_SEED = {
  sandbox: { files: [{ path: 'stubborn.sh', text: STUBBORN }] },
  hermes: { toolsets: ['terminal', 'delegation'] },
};

const used = (reply: Completion): Completion => ({ ...reply, usage: FAMILY_USAGE });

/**
 * A root that delegates to three children at once, at a server that takes its time: CHILD-1 and CHILD-2 ask on and on,
 * CHILD-3 runs a command that does not end.
 */
export const slowFamily: Script = async (request) => {
  const task = taskOf(request);
  if (!task.includes('CHILD'))
    return used(
      turnOf(request) === 0
        ? callTool('delegate_task', { tasks: [1, 2, 3].map((n) => ({ goal: `CHILD-${n}` })) }, 'call_family')
        : say('never comes here'),
    );
  await sleep(LATENCY_MS);
  if (task.includes('CHILD-3')) return used(callTool('terminal', { command: 'sh stubborn.sh' }));
  return used(callTool('terminal', { command: 'echo worked' }));
};

/** A root alone, in a command that does not end: no call is open. */
export const busyRoot: Script = (request) =>
  used(callTool('terminal', { command: turnOf(request) === 0 ? 'echo worked' : 'sh stubborn.sh' }));

/** Calls that the server answered to the end. */
export const answeredOf = (calls: readonly ModelCall[]): number =>
  calls.filter(({ answeredAt }) => answeredAt !== undefined).length;
