import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Redis } from 'ioredis';
import type { TcpProxy } from '../setup/tcp-proxy.ts';
import { type HarnessOptions, pick } from './harness-fleet.ts';

export const MODES = ['calm', 'faults', 'outage', 'kill'] as const;
export type Mode = (typeof MODES)[number];

const WORKER = path.resolve(import.meta.dirname, 'harness-worker.ts');
/** Three lock durations. */
const OUTAGE_MS = 6000;
/** Longer than an engine's lease and grace. */
const ENGINE_LOSS_MS = 7000;

interface Member {
  readonly options: HarnessOptions;
  process: ChildProcess;
  isDown: boolean;
}

/** The worker processes of a fault run, and what is done to them. */
export class Crew {
  readonly faults: Record<string, number> = {};
  readonly counts: Record<string, number> = {};
  readonly #members: Member[] = [];
  readonly #pending = new Set<Promise<void>>();

  async start(options: HarnessOptions): Promise<void> {
    this.#members.push({ options, process: await this.#spawn(options), isDown: false });
  }

  /** Goes on until `signal` aborts, and returns when all that it took down is back. */
  async disturb(mode: Mode, proxy: TcpProxy, admin: Redis, signal: AbortSignal): Promise<void> {
    if (mode === 'calm') return;
    while (!signal.aborted) {
      if (mode === 'outage') await this.#outage(proxy, signal);
      if (mode === 'kill') await this.#pause(2500 + Math.random() * 1500, signal);
      if (mode === 'faults') await this.#pause(400 + Math.random() * 900, signal);
      if (signal.aborted) break;
      if (mode === 'kill') this.#inBackground(this.#kill(5000));
      if (mode === 'faults') await this.#anyFault(admin);
    }
    await Promise.all(this.#pending);
  }

  stop(): void {
    for (const member of this.#members) member.process.kill('SIGKILL');
  }

  async #spawn(options: HarnessOptions): Promise<ChildProcess> {
    const child = fork(WORKER, [JSON.stringify(options)], {
      execArgv: ['--import', 'tsx', '--conditions=@hermes-fleet/source'],
    });
    const before: Record<string, number> = {};
    await new Promise<void>((resolve, reject) => {
      child.once('exit', () => reject(new Error(`worker ${options.name} ended before it was ready`)));
      child.on('message', (message) => {
        if (message === 'ready') return resolve();
        for (const [what, count] of Object.entries(message as Record<string, number>)) {
          this.counts[what] = (this.counts[what] ?? 0) + count - (before[what] ?? 0);
          before[what] = count;
        }
      });
    });
    return child;
  }

  async #pause(ms: number, signal: AbortSignal): Promise<void> {
    await sleep(ms, undefined, { signal }).catch(() => undefined);
  }
  #count(fault: string): void {
    this.faults[fault] = (this.faults[fault] ?? 0) + 1;
  }
  #inBackground(work: Promise<void>): void {
    this.#pending.add(work);
    void work.finally(() => this.#pending.delete(work));
  }
  #victims(): Member[] {
    return this.#members.filter((member) => !member.isDown);
  }

  #anyone(): Member[] {
    const one = pick(this.#victims());
    return one === undefined ? [] : [one];
  }

  async #outage(proxy: TcpProxy, signal: AbortSignal): Promise<void> {
    await this.#pause(3000 + Math.random() * 3000, signal);
    if (signal.aborted) return;
    this.#count('outages');
    if ((this.faults['outages'] ?? 0) % 2 === 1) proxy.cut();
    else proxy.hole();
    await sleep(OUTAGE_MS);
    proxy.up();
  }

  async #anyFault(admin: Redis): Promise<void> {
    const dice = Math.random();
    if (dice < 0.35) this.#inBackground(this.#kill(200 + Math.random() * 1200));
    else if (dice < 0.6) this.#inBackground(this.#freeze(this.#anyone(), 1500 + Math.random() * 4000));
    else if (dice < 0.9) await this.#dropConnections(admin);
    else this.#inBackground(this.#loseEngine());
  }

  async #kill(backAfterMs: number): Promise<void> {
    const victim = pick(this.#victims());
    if (victim === undefined) return;
    this.#count('kills');
    victim.isDown = true;
    const gone = once(victim.process, 'exit');
    victim.process.kill('SIGKILL');
    await gone;
    await sleep(backAfterMs);
    victim.process = await this.#spawn(victim.options);
    victim.isDown = false;
  }

  async #freeze(victims: readonly Member[], ms: number): Promise<void> {
    if (victims.length > 0) this.#count('freezes');
    for (const victim of victims) {
      victim.isDown = true;
      victim.process.kill('SIGSTOP');
    }
    await sleep(ms);
    for (const victim of victims) {
      victim.process.kill('SIGCONT');
      victim.isDown = false;
    }
  }

  /** All workers of one engine fall silent at once, for longer than its lease. */
  async #loseEngine(): Promise<void> {
    const all = this.#members.filter((member) => member.options.engine === 'h2');
    if (all.some((member) => member.isDown)) return;
    this.#count('engines lost');
    await this.#freeze(all, ENGINE_LOSS_MS);
  }

  async #dropConnections(admin: Redis): Promise<void> {
    this.#count('dropped connections');
    const clients = String(await admin.client('LIST')).split('\n');
    const ids = clients.map((line) => /id=(\d+)/.exec(line)?.[1]).filter((id) => id !== undefined);
    const id = pick(ids);
    if (id !== undefined) await admin.call('CLIENT', 'KILL', 'ID', id, 'SKIPME', 'yes');
  }
}
