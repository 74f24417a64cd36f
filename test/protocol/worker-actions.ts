import type { FinishAnswer, Job, Next } from '@hermes-fleet/shared';
import { type Actions, AT, MAX_BEGINS } from './action.ts';
import { RunChanges } from './run-changes.ts';
import { addJob, believesToOwn, field, leases, type Run, type State } from './state.ts';
import { FOREVER, NOW, SESSION } from './stored.ts';

/** The steps of one call of the worker's processor, in the order of the contract. */
class RunActions extends RunChanges {
  collect(): void {
    const { budget } = this.state;
    const { step, command } = this.run;
    if (budget.crash > 0)
      this.actions.add(`crash of ${command} in ${step}`, (next) => {
        next.budget.crash--;
        next.runs.splice(this.index, 1);
      });
    if (step === 'admit') this.#admit();
    if (step === 'begin') this.#begin();
    if (step === 'execute') this.#execute();
    if (step === 'act') {
      this.#append('intent', 'model', (next) => this.end(next, 'ok'));
      this.#append('intent', 'tool', (next) => (this.me(next).step = 'tool'));
    }
    if (step === 'tool') this.#tool();
    if (step === 'outcome') this.#append('outcome', 'tool', (next) => this.end(next, 'ok'));
    if (budget.drain > 0 && ['execute', 'act', 'outcome'].includes(step)) this.#drain();
    if (step === 'finish') this.#finish();
    if (believesToOwn(this.run) && this.#hasNews()) this.#renew();
    if (step === 'release' || step === 'release and wait') this.#release();
    if (step === 'add') this.#add();
  }

  #admit(): void {
    const engine = this.state.engineDown ? 'h2' : 'h1';
    const member = `${SESSION}.${this.run.nonce}`;
    this.actions.call(
      this.label('admit'),
      async () => await this.actions.lane.scripts.admit(engine, member, FOREVER, 10),
      (next, answer) => {
        if (answer !== 'ok') return this.giveBack(next);
        Object.assign(this.me(next), { step: 'begin', member, engine });
      },
    );
  }

  #begin(): void {
    const { command, nonce, member } = this.run;
    const call = async () => await this.actions.lane.scripts.begin(AT, command, nonce, MAX_BEGINS);
    this.actions.call(this.label('begin'), call, (next, answer) => {
      if (answer.status === 'begun') return this.begun(next, answer.view);
      if (answer.status === 'suspect') {
        if (member === undefined) this.giveBack(next);
        else this.me(next).step = 'release and wait';
        return;
      }
      this.me(next).step = 'release';
      this.me(next).job = answer.status === 'done' ? answer.job : undefined;
    });
    if (this.state.budget.lost > 0)
      this.actions.call(this.label('begin, reply lost'), call, (next) => next.budget.lost--);
  }

  #execute(): void {
    const { kind, member, engine, lease } = this.run;
    const { budget } = this.state;
    if (kind === 'seed') {
      this.actions.add(this.label('creates'), (next) => {
        next.sandboxes[member ?? ''] = { epoch: 0, running: 0, engine: engine ?? '' };
        this.end(next, 'ok');
      });
      if (budget.seedFail > 0)
        this.actions.add(this.label('fails to create'), (next) => {
          next.budget.seedFail--;
          this.end(next, 'failed', { released: true });
        });
    }
    if (kind === 'activate')
      this.actions.add(this.label('starts'), (next) => {
        const sandbox = next.sandboxes[lease ?? ''];
        if (sandbox === undefined) return this.end(next, 'infra', { sandboxLost: true });
        if (sandbox.epoch > this.epoch) return this.end(next, 'infra');
        sandbox.epoch = this.epoch;
        sandbox.running = this.epoch;
        this.me(next).step = 'act';
      });
    if (kind === 'close') {
      this.actions.add(this.label('removes'), (next) => {
        if (lease !== undefined) delete next.sandboxes[lease];
        this.end(next, 'ok');
      });
      if (budget.closeFail > 0)
        this.actions.add(this.label('fails to remove'), (next) => {
          next.budget.closeFail--;
          this.end(next, 'infra');
        });
    }
  }

  #append(phase: 'intent' | 'outcome', kind: 'model' | 'tool', then: (next: State) => void): void {
    const { command, fence = '' } = this.run;
    const entry = { phase, kind, act: '1', data: '' };
    this.actions.call(
      this.label(`appends ${phase} of ${kind}`),
      async () => await this.actions.lane.scripts.append(AT, command, '0', fence, entry, 1e9),
      (next, answer) => {
        if (answer.status === 'fenced') this.fenced(next);
        else if (answer.status === 'cancelled') this.end(next, 'cancelled');
        else then(next);
      },
    );
  }

  #tool(): void {
    const { command, fence = '', lease } = this.run;
    this.actions.add(this.label('tool act'), (next) => {
      if (next.sandboxes[lease ?? '']?.running === this.epoch) {
        const before = next.acts[command];
        if (before !== undefined && before !== fence && !next.failedOver)
          next.wrong = `acts of ${command} were made under two fences`;
        next.acts[command] = fence;
      }
      this.me(next).step = 'outcome';
    });
  }

  #drain(): void {
    this.actions.add(this.label('drains'), (next) => {
      next.budget.drain--;
      this.stopOwnRunner(next);
      if (this.isSeed) this.removeOwnSandbox(next);
      this.end(next, 'again', { released: this.isSeed });
    });
  }

  #finish(): void {
    const {
      command,
      kind,
      fence = '',
      result = 'ok',
      engine = '',
      released = false,
      sandboxLost: lost = false,
    } = this.run;
    const usesFastPath = this.actions.configuration.fastPath !== false;
    const nextNonce = usesFastPath ? (this.run.nextNonce ?? `n${this.state.lastRun + 1}`) : '';
    const call = async () =>
      await this.actions.lane.scripts.finish(AT, {
        commandId: command,
        fence,
        resultClass: result,
        code: '',
        body: 'null',
        blob: '',
        blobTtlMs: 0,
        holdMs: FOREVER,
        queue: this.isSeed ? `engine-${engine}` : 'any',
        engine: this.isSeed || kind === 'close' || lost ? engine : '',
        descriptor: this.isSeed ? 'd' : '',
        released,
        lost,
        nextNonce: result === 'again' ? '' : nextNonce,
        maxBegins: MAX_BEGINS,
      });
    const stop = (next: State): void => {
      this.stopOwnRunner(next);
      if (this.isSeed && result !== 'ok') this.removeOwnSandbox(next);
    };
    const asked = (next: State): void => {
      if (!usesFastPath || this.run.nextNonce !== undefined) return;
      next.lastRun++;
      this.me(next).nextNonce = nextNonce;
    };
    this.actions.call(this.label(`finish ${result}`), call, (next, answer) => {
      stop(next);
      const first = next.published[this.state.published.length];
      if (first?.command === command && field(this.state, 'fe') !== fence)
        next.wrong = `a fenced run published ${command}`;
      if (answer.status === 'dup' || answer.status === 'published') asked(next);
      this.#finished(next, answer, nextNonce);
    });
    if (this.state.budget.lost > 0)
      this.actions.call(this.label(`finish ${result}, reply lost`), call, (next) => {
        next.budget.lost--;
        stop(next);
        asked(next);
      });
  }

  #finished(next: State, answer: FinishAnswer, nextNonce: string): void {
    const run = this.me(next);
    switch (answer.status) {
      case 'cancel_pending':
      case 'lease_lost':
        this.removeOwnSandbox(next);
        this.end(next, answer.status === 'lease_lost' ? 'again' : 'cancelled', { released: true });
        delete run.nextNonce;
        return;
      case 'again':
        if (answer.job.jobId === run.jobId) this.giveBack(next);
        else this.#addThenEnd(run, answer.job);
        return;
      case 'fenced':
      case 'gone':
        return this.fenced(next);
      case 'dup':
        if (!this.isSeed || answer.fence === run.fence) return this.#goOn(next, answer.next, nextNonce);
        this.removeOwnSandbox(next);
        run.step = 'release';
        run.job = answer.next.job;
        return;
      case 'published':
        return this.#goOn(next, answer.next, nextNonce);
      case 'blob_missing':
        next.wrong = 'a blob was missed that nobody wrote';
    }
  }

  /** On with the command that finish took, or with the job that it returned. */
  #goOn(next: State, { job, taken }: Next, nonce: string): void {
    const run = this.me(next);
    if (taken === undefined) return this.#addThenEnd(run, job);
    const { rid, jobId } = run;
    const { commandId: command, name: kind } = taken.job;
    next.runs[this.index] = { rid, jobId, command, kind, nonce, step: 'execute' };
    this.begun(next, taken.view);
  }
  #addThenEnd(run: Run, job: Job | undefined): void {
    run.step = 'add';
    run.job = job;
  }

  /** Whether renew would tell or change anything. */
  #hasNews(): boolean {
    const { fence, member, engine } = this.run;
    const lapses = leases(this.state, engine === 'h2' ? 'h2' : 'h1');
    return (
      fence !== field(this.state, 'fe') ||
      field(this.state, 'hb') !== NOW ||
      field(this.state, 'su') !== undefined ||
      (this.isSeed && member !== undefined && (lapses.get(member) ?? 0) <= Number(NOW))
    );
  }
  #renew(): void {
    const { command, fence = '', member, engine = '', step } = this.run;
    const lease = this.isSeed && member !== undefined ? { engine, member, ttlMs: FOREVER } : undefined;
    this.actions.call(
      this.label('renew'),
      async () => await this.actions.lane.scripts.renew(AT, command, fence, lease),
      (next, answer) => {
        if (step === 'finish') return; // its answer decides
        if (answer.status === 'fenced') this.fenced(next);
        else if (answer.status === 'lost') {
          this.removeOwnSandbox(next);
          this.end(next, 'again', { released: true });
        }
      },
    );
  }

  #release(): void {
    const { member, engine = '', step } = this.run;
    const { lane } = this.actions;
    const isOurs = member !== undefined && field(this.state, 'le') !== member;
    const drops = isOurs && this.state.stored.record.length > 0;
    this.actions.call(
      this.label('release'),
      async () =>
        await (drops
          ? lane.send('ZREM', lane.keys.leases(engine), member)
          : lane.send('EXISTS', lane.keys.record(SESSION))),
      (next) => {
        if (isOurs) this.removeOwnSandbox(next);
        if (step === 'release and wait') this.giveBack(next);
        else this.me(next).step = 'add';
      },
    );
  }

  #add(): void {
    const { jobId, rid, job } = this.run;
    this.actions.add(this.label('adds and completes'), (next) => {
      addJob(next, job);
      if (next.jobs[jobId]?.h === rid) delete next.jobs[jobId];
      next.runs.splice(this.index, 1);
    });
  }
}

export function workerActions(actions: Actions): void {
  for (const [index, run] of actions.state.runs.entries()) new RunActions(actions, index, run).collect();
}
