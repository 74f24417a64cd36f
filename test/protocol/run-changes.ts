import type { CommandView } from '@hermes-fleet/shared';
import type { Actions } from './action.ts';
import { commands, epochOf, isOpen, type Run, type State } from './state.ts';

/** What the steps of one call of the worker's processor change in the model. */
export class RunChanges {
  protected readonly actions: Actions;
  protected readonly state: State;
  protected readonly index: number;
  protected readonly run: Run;
  protected readonly isSeed: boolean;
  protected readonly epoch: number;

  constructor(actions: Actions, index: number, run: Run) {
    this.actions = actions;
    this.state = actions.state;
    this.index = index;
    this.run = run;
    this.isSeed = run.kind === 'seed';
    this.epoch = epochOf(run.fence);
  }

  protected label(what: string): string {
    return `${this.run.rid}:${this.run.command} ${what}`;
  }
  protected me(next: State): Run {
    const run = next.runs[this.index];
    if (run === undefined) throw new Error('the run of an action is gone');
    return run;
  }
  protected end(
    next: State,
    result: NonNullable<Run['result']>,
    flags: { released?: boolean; sandboxLost?: boolean } = {},
  ): void {
    const run = this.me(next);
    run.step = 'finish';
    run.result = result;
    run.released = flags.released === true;
    run.sandboxLost = flags.sandboxLost === true;
  }
  /** Gives the job back, unless it is another's by now. */
  protected giveBack(next: State): void {
    const job = next.jobs[this.run.jobId];
    if (job?.h === this.run.rid) job.h = 'waiting';
    next.runs.splice(this.index, 1);
  }
  protected removeOwnSandbox(next: State): void {
    if (this.run.member !== undefined) delete next.sandboxes[this.run.member];
  }
  protected stopOwnRunner(next: State): void {
    const sandbox = next.sandboxes[this.run.lease ?? ''];
    if (this.run.kind === 'activate' && sandbox?.running === this.epoch) sandbox.running = 0;
  }
  protected fenced(next: State): void {
    this.stopOwnRunner(next);
    if (this.isSeed) this.removeOwnSandbox(next);
    this.me(next).step = 'release';
    this.me(next).job = undefined;
  }

  /** The answer of begin, or of a finish that took this command. */
  protected begun(next: State, view: CommandView): void {
    const run = this.me(next);
    run.fence = view.fence;
    run.lease = view.lease;
    if (run.kind !== 'seed') run.engine = view.engine;
    if (view.verdict !== 'run') {
      this.end(next, view.verdict === 'cancelled' ? 'cancelled' : 'infra', { released: true });
      const sandbox = next.sandboxes[view.lease];
      if (sandbox !== undefined && run.kind === 'activate') sandbox.running = 0;
      return;
    }
    run.step = 'execute';
    const known = commands(next);
    const number = known.get(run.command)?.number ?? 0;
    for (const command of known.values())
      if (command.number < number && isOpen(command)) next.wrong = 'a command began before an earlier one had ended';
  }
}
