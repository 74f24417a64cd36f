import type { Address } from '@hermes-fleet/shared';
import type { Configuration } from './configurations.ts';
import type { Lane } from './lane.ts';
import type { State } from './state.ts';
import { REPLY_TO, SESSION } from './stored.ts';

export const AT: Address = { key: SESSION, replyTo: REPLY_TO };
export const MAX_BEGINS = 100;

/** What can happen next. `call` is what it does in Redis, if anything; it returns what then changes in the model. */
export interface Action {
  readonly label: string;
  readonly call: (() => Promise<(next: State) => void>) | undefined;
  /** The change of an action without a call. */
  readonly change: (next: State) => void;
}

/** Collects the actions that are possible in one state. */
export class Actions {
  readonly state: State;
  readonly lane: Lane;
  readonly configuration: Configuration;
  readonly list: Action[] = [];

  constructor(state: State, lane: Lane, configuration: Configuration) {
    this.state = state;
    this.lane = lane;
    this.configuration = configuration;
  }

  /** A step of the model alone. */
  add(label: string, change: (next: State) => void): void {
    this.list.push({ label, call: undefined, change });
  }

  /** A step that calls Redis; `then` sees the state with what Redis holds afterwards. */
  call<Answer>(label: string, send: () => Promise<Answer>, then: (next: State, answer: Answer) => void): void {
    const call = async (): Promise<(next: State) => void> => {
      const answer = await send();
      return (next) => then(next, answer);
    };
    this.list.push({ label, call, change: () => undefined });
  }
}
