import { type Actions, AT } from './action.ts';
import { addJob, commands, field, leases, type State } from './state.ts';
import { ENGINES, LONG_AGO, NOW } from './stored.ts';

/** Whoever looks after sessions that are due. */
export function tickActions(actions: Actions): void {
  const { state, lane } = actions;
  const running = field(state, 'run');
  const status = field(state, 'st');
  const isBegun = running !== undefined && commands(state).get(running)?.letter === 'b';
  const hasNoJob =
    running !== undefined &&
    !Object.values(state.jobs).some((job) => job.commandId === running) &&
    !state.pending.some((job) => job.commandId === running);
  const isNeeded = (hasNoJob && (!isBegun || field(state, 'hb') === LONG_AGO)) || state.expired || state.engineDown;
  if (status !== undefined && status !== 'z' && isNeeded)
    actions.call(
      'tick',
      async () => await lane.scripts.tick(AT, field(state, 'en') ?? '', 0),
      (next, answer) => {
        if (answer.status === 'moved') next.wrong = 'a tick was sent elsewhere';
        addJob(next, answer.job);
      },
    );
}

/** The reaper of each engine. */
export function reaperActions(actions: Actions): void {
  const { state, lane } = actions;
  for (const engine of ENGINES) {
    const taken = leases(state, engine);
    const there = Object.keys(state.sandboxes).filter((name) => state.sandboxes[name]?.engine === engine);
    for (const member of new Set([...taken.keys(), ...there])) {
      const expiry = taken.get(member);
      const claim = async (): Promise<string> => await lane.scripts.reap(engine, member, 0, 'claim');
      const isAlive = state.runs.some((run) => run.member === member);
      const isHeld = field(state, 'le') === member && field(state, 'st') !== 'z';
      if (expiry !== undefined && expiry < 0)
        actions.call(
          `reaper removes ${member}`,
          async () => await lane.scripts.reap(engine, member, 0, 'done'),
          (next) => delete next.sandboxes[member],
        );
      else if (expiry === undefined || expiry < Number(NOW))
        actions.call(`reap ${member}`, claim, (next, answer) => {
          if (answer === 'free') delete next.sandboxes[member];
        });
      else if (!isHeld && (!isAlive || state.budget.reapLive > 0))
        actions.call(
          `lapse and reap ${member}`,
          async () => (await Promise.all([lane.send('ZADD', lane.keys.leases(engine), 1, member), claim()]))[1],
          (next) => {
            if (isAlive) next.budget.reapLive--;
          },
        );
    }
  }
}

/** BullMQ: jobs are taken, and handed out again when their holder is dead, or from the budget when it lives. */
export function queueActions(actions: Actions): void {
  const { state } = actions;
  for (const [jobId, job] of Object.entries(state.jobs)) {
    const holder = job.h;
    const wait = (next: State): void => {
      const held = next.jobs[jobId];
      if (held !== undefined) held.h = 'waiting';
    };
    if (holder === 'waiting') {
      if (state.runs.length < 2)
        actions.add(`take ${job.commandId}`, (next) => {
          const rid = ++next.lastRun;
          const held = next.jobs[jobId];
          if (held !== undefined) held.h = rid;
          next.runs.push({
            rid,
            jobId,
            command: job.commandId,
            kind: job.name,
            nonce: `n${rid}`,
            step: job.name === 'seed' ? 'admit' : 'begin',
          });
        });
    } else if (!state.runs.some((run) => run.rid === holder))
      actions.add(`${job.commandId} stalled, its holder is dead`, wait);
    else if (state.budget.redeliver > 0)
      actions.add(`${job.commandId} handed out again, its holder lives`, (next) => {
        wait(next);
        next.budget.redeliver--;
      });
  }
}
