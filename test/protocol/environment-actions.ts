import type { Job, Scripts, SubmitCommand } from '@hermes-fleet/shared';
import { type Actions, AT } from './action.ts';
import { addJob, commands, copyJobs, field, livingOwner, type State } from './state.ts';
import { FOREVER, LONG_AGO, NOW, SESSION, SILENT } from './stored.ts';

const activation = (commandId: string): SubmitCommand => ({
  kind: 'activate',
  commandId,
  digest: commandId,
  payload: commandId,
});
const close = (when: 'now' | 'idle'): SubmitCommand => ({
  kind: 'close',
  commandId: 'close',
  digest: '',
  payload: '',
  when,
});
const COMMANDS: Readonly<Record<string, SubmitCommand>> = {
  s: { kind: 'seed', commandId: 'seed', digest: 's', payload: 's' },
  a: activation('a1'),
  b: activation('a2'),
  i: close('idle'),
  n: close('now'),
};

const OPTIONS = {
  sessionId: 'S',
  identity: 'r',
  parkedLimit: 1000,
  unreadLimit: 1e6,
  waitTtlMs: FOREVER,
  sessionTtlMs: FOREVER,
  seedQueue: 'new-stub',
  sweepId: undefined,
};

type Submitted = Awaited<ReturnType<Scripts['submit']>>;
function remember(next: State, job: Job | undefined): void {
  if (job !== undefined) next.pending.push(job);
}
function submitted(next: State, answer: Submitted): void {
  if ('moved' in answer) next.wrong = 'a submit was sent elsewhere';
  else remember(next, answer.job);
}

/** Whoever submits, cancels and closes, and whoever adds the jobs that these calls return. */
export function producerActions(actions: Actions): void {
  const { state, lane, configuration } = actions;
  const { budget } = state;
  const submit = async (letters: string): Promise<Submitted> =>
    await lane.scripts.submit(
      AT,
      OPTIONS,
      letters.split('').flatMap((letter) => COMMANDS[letter] ?? []),
    );
  const step = configuration.plan[state.submitted];
  if (step !== undefined) {
    actions.call(
      `submit ${step}`,
      async () => await submit(step),
      (next, answer) => {
        next.submitted++;
        submitted(next, answer);
      },
    );
    if (budget.lost > 0)
      actions.call(
        `submit ${step}, reply lost`,
        async () => await submit(step),
        (next) => next.budget.lost--,
      );
  }
  if (budget.close > 0)
    actions.call(
      'close now',
      async () => await submit('n'),
      (next, answer) => {
        next.budget.close--;
        submitted(next, answer);
      },
    );
  if (budget.cancel > 0)
    for (const command of configuration.cancelOf ?? ['a1'])
      actions.call(
        `cancel ${command}`,
        async () => await lane.scripts.cancel(AT, command, 'by_caller'),
        (next, answer) => {
          next.budget.cancel--;
          if ('moved' in answer) next.wrong = 'a cancel was sent elsewhere';
          else if (answer.status === 'accepted') {
            next.cancelled[command] = true;
            remember(next, answer.job);
          }
        },
      );
  for (const [index, job] of state.pending.entries()) {
    actions.add(`add ${job.commandId}`, (next) => {
      next.pending.splice(index, 1);
      addJob(next, job);
    });
    if (budget.adderCrash > 0)
      actions.add(`whoever adds ${job.commandId} dies`, (next) => {
        next.pending.splice(index, 1);
        next.budget.adderCrash--;
      });
  }
}

function hasOwner(state: State): boolean {
  return commands(state).get(field(state, 'run') ?? '')?.letter === 'b';
}

/** Deadlines, engines and outages: what in reality comes by waiting. */
export function clockActions(actions: Actions): void {
  const { state, lane } = actions;
  const { budget } = state;
  const record = lane.keys.record(SESSION);
  if (budget.expire > 0 && field(state, 'xp') !== undefined)
    actions.call(
      'deadline',
      async () => await lane.send('HSET', record, 'xp', LONG_AGO),
      (next) => {
        next.budget.expire--;
        next.expired = true;
      },
    );
  if (budget.engine > 0 && field(state, 'en') === 'h1')
    actions.call(
      'engine lost',
      async () => await lane.send('ZADD', lane.keys.engines, 0, 'h1'),
      (next) => {
        next.budget.engine--;
        next.engineDown = true;
      },
    );
  if (budget.outage > 0 && (hasOwner(state) || state.runs.length > 0))
    actions.call(
      'outage',
      async () => await (hasOwner(state) ? lane.send('HSET', record, 'hb', LONG_AGO) : lane.send('EXISTS', record)),
      (next) => {
        next.budget.outage--;
        for (const job of Object.values(next.jobs)) job.h = 'waiting';
      },
    );
}

/** Silence of the running command's owner and the end of its grace: free when the owner is dead, else from the budget. */
export function silenceActions(actions: Actions): void {
  const { state, lane } = actions;
  if (!hasOwner(state)) return;
  const { budget } = state;
  const record = lane.keys.record(SESSION);
  const write = async (name: string, value: string): Promise<unknown> => await lane.send('HSET', record, name, value);
  const isAlive = livingOwner(state) !== undefined;
  const heard = field(state, 'hb');
  if (heard === NOW && (!isAlive || budget.deaf > 0))
    actions.call(
      `owner silent${isAlive ? ', lives' : ''}`,
      async () => await write('hb', SILENT),
      (next) => {
        if (isAlive) next.budget.deaf--;
      },
    );
  if (heard === SILENT)
    actions.call(
      'owner silent beyond the lapse',
      async () => await write('hb', LONG_AGO),
      () => undefined,
    );
  // An owner that was heard since cannot be marked any more, so this costs nothing then.
  if (field(state, 'su') === NOW && (!isAlive || budget.grace > 0 || heard === NOW))
    actions.call(
      `grace over${isAlive ? ', owner lives' : ''}`,
      async () => await write('su', LONG_AGO),
      (next) => {
        if (isAlive && heard !== NOW) next.budget.grace--;
      },
    );
}

/** The last writes before a fail-over may be lost: all of Redis goes back to an earlier moment. */
export function failoverActions(actions: Actions): void {
  const { state } = actions;
  const { budget, snapshot } = state;
  if (budget.failover === 2)
    actions.add('the last write that survives', (next) => {
      next.budget.failover = 1;
      next.snapshot = { stored: state.stored, jobs: copyJobs(state) };
    });
  if (budget.failover === 1 && snapshot !== undefined)
    actions.add('fail-over', (next) => {
      next.budget.failover = 0;
      next.stored = snapshot.stored;
      next.jobs = copyJobs({ ...state, jobs: snapshot.jobs });
      delete next.snapshot;
      next.failedOver = true;
    });
}
