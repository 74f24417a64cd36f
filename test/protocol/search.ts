import { Keys } from '@hermes-fleet/shared';
import { Redis } from 'ioredis';
import { type Action, Actions } from './action.ts';
import type { Configuration } from './configurations.ts';
import { clockActions, failoverActions, producerActions, silenceActions } from './environment-actions.ts';
import { isSettled, violation } from './invariants.ts';
import { Lane } from './lane.ts';
import { queueActions, reaperActions, tickActions } from './maintenance-actions.ts';
import { clone, initialState, type State, stateKey } from './state.ts';
import { workerActions } from './worker-actions.ts';

export interface SearchOptions {
  readonly redisUrl: string;
  /** Changes the Lua before it is used: a planted fault. */
  readonly edit?: (lua: string) => string;
  readonly seconds: number;
}

export interface SearchReport {
  readonly states: number;
  readonly transitions: number;
  /** States in which everything has ended. */
  readonly settled: number;
  /** Whether all reachable states were seen. */
  readonly isComplete: boolean;
  readonly seconds: number;
  /** First invariant that was broken, and the way there. */
  readonly violation: { readonly what: string; readonly trace: readonly string[] } | undefined;
  /** States of a complete search from which nothing leads to the end. */
  readonly stuck: number;
  readonly stuckTrace: readonly string[];
}

const AT_ONCE = 400;

/** The states seen so far and how they are reached. A state itself is kept only until its actions were tried. */
class Graph {
  readonly #configuration: Configuration;
  readonly #ids = new Map<string, number>();
  readonly #states: (State | undefined)[] = [];
  readonly #parents: number[] = [];
  readonly #labels: string[] = [];
  readonly #before: number[][] = [];
  readonly #settled: number[] = [];
  violation: SearchReport['violation'];

  constructor(configuration: Configuration) {
    this.#configuration = configuration;
  }
  get size(): number {
    return this.#states.length;
  }
  get settled(): number {
    return this.#settled.length;
  }

  add(state: State, parent: number, label: string): void {
    const key = stateKey(state);
    let id = this.#ids.get(key);
    if (id === undefined) {
      id = this.#states.length;
      this.#ids.set(key, id);
      this.#states.push(state);
      this.#parents.push(parent);
      this.#labels.push(label);
      this.#before.push([]);
      const what = violation(state, this.#configuration);
      if (what !== undefined) this.violation ??= { what, trace: this.trace(id) };
      if (isSettled(state, this.#configuration)) this.#settled.push(id);
    }
    if (parent >= 0) this.#before[id]?.push(parent);
  }

  take(id: number): State {
    const state = this.#states[id];
    if (state === undefined) throw new Error('a state was taken twice');
    this.#states[id] = undefined;
    return state;
  }

  trace(id: number): string[] {
    const labels: string[] = [];
    for (let at = id; at > 0; at = this.#parents[at] ?? 0) labels.unshift(this.#labels[at] ?? '');
    return labels;
  }

  /** States from which no settled one can be reached, by going backwards from those. */
  stuck(): number[] {
    const isGood = new Uint8Array(this.size);
    const left = [...this.#settled];
    for (const id of left) isGood[id] = 1;
    for (let id = left.pop(); id !== undefined; id = left.pop())
      for (const parent of this.#before[id] ?? [])
        if (isGood[parent] === 0) {
          isGood[parent] = 1;
          left.push(parent);
        }
    return [...isGood.keys()].filter((id) => isGood[id] === 0);
  }
}

function possible(state: State, lane: Lane, configuration: Configuration): readonly Action[] {
  const actions = new Actions(state, lane, configuration);
  producerActions(actions);
  clockActions(actions);
  silenceActions(actions);
  failoverActions(actions);
  tickActions(actions);
  reaperActions(actions);
  queueActions(actions);
  workerActions(actions);
  return actions.list;
}

/** Tries all actions of the states `from` up to `to`; returns how many there were. */
async function expand(
  graph: Graph,
  lane: Lane,
  configuration: Configuration,
  from: number,
  to: number,
): Promise<number> {
  let transitions = 0;
  const answered: Promise<void>[] = [];
  for (let id = from; id < to; id++) {
    const state = graph.take(id);
    for (const { label, call, change } of possible(state, lane, configuration)) {
      transitions++;
      if (call === undefined) {
        const next = clone(state);
        change(next);
        graph.add(next, id, label);
        continue;
      }
      const arrive = async (): Promise<void> => {
        const { answer, stored, published } = await lane.step(state.stored, call);
        const next = clone(state);
        next.stored = stored;
        next.published.push(...published);
        answer(next);
        graph.add(next, id, label);
      };
      answered.push(
        arrive().catch((error: unknown) => {
          graph.violation ??= { what: `script error: ${String(error)}`, trace: [...graph.trace(id), label] };
        }),
      );
    }
  }
  await lane.flush();
  await Promise.all(answered);
  return transitions;
}

/**
 * Exhaustive breadth-first search over the real scripts on a real Redis, with a model of BullMQ, workers, producer,
 * reaper, sandboxes and clock. Ends at the first violation.
 */
export async function search(configuration: Configuration, options: SearchOptions): Promise<SearchReport> {
  const started = performance.now();
  const seconds = (): number => (performance.now() - started) / 1000;
  const redis = new Redis(options.redisUrl);
  const lane = new Lane(
    redis,
    new Keys(`search-${process.pid}-${Math.round(started)}`),
    options.edit ?? ((lua) => lua),
  );
  const graph = new Graph(configuration);
  graph.add(initialState(configuration), -1, 'start');
  let transitions = 0;
  let done = 0;
  try {
    while (done < graph.size && graph.violation === undefined && seconds() < options.seconds) {
      const to = Math.min(graph.size, done + AT_ONCE);
      transitions += await expand(graph, lane, configuration, done, to);
      done = to;
    }
    await lane.clear();
  } finally {
    redis.disconnect();
  }
  const isComplete = done >= graph.size;
  const stuck = isComplete && graph.violation === undefined ? graph.stuck() : [];
  return {
    states: graph.size,
    transitions,
    settled: graph.settled,
    isComplete,
    seconds: seconds(),
    violation: graph.violation,
    stuck: stuck.length,
    stuckTrace: stuck[0] === undefined ? [] : graph.trace(stuck[0]),
  };
}
