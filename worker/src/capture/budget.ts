import { type Budgets, FleetError } from '@hermes-fleet/shared';

/** Tokens of one call, as the Model Server counted them. */
export interface CallUsage {
  readonly inputTokens: number;
  readonly outputTokens: number;
}

/**
 * The limits of one activation, over root agent, children and auxiliary calls together. It is asked before each call;
 * what a call will use is known only afterwards, so input may pass its limit by one call, and calls at the same time may together pass that of output.
 */
export class Budget {
  readonly #limits: Budgets;
  #calls = 0;
  #input = 0;
  #output = 0;

  /** @param maxOutputTokens the request's own `max_output_tokens`: the lower one counts */
  constructor(limits: Budgets, maxOutputTokens: number | undefined) {
    const output = Math.min(limits.max_output_tokens ?? Infinity, maxOutputTokens ?? Infinity);
    this.#limits = { ...limits, ...(output === Infinity ? {} : { max_output_tokens: output }) };
  }

  /** Takes one call out of the budget. @throws FleetError `incomplete/…` when there is nothing left for it */
  takeCall(): void {
    const {
      max_model_calls: calls,
      max_input_tokens: input,
      max_output_tokens: output,
      max_total_tokens: total,
    } = this.#limits;
    if (calls !== undefined && this.#calls >= calls)
      throw new FleetError('incomplete/max_model_calls', `the budget of ${calls} model calls is used up`);
    if (input !== undefined && this.#input >= input)
      throw new FleetError('incomplete/max_input_tokens', `the budget of ${input} input tokens is used up`);
    if (output !== undefined && this.#output >= output)
      throw new FleetError('incomplete/max_output_tokens', `the budget of ${output} output tokens is used up`);
    if (total !== undefined && this.#input + this.#output >= total)
      throw new FleetError('incomplete/max_total_tokens', `the budget of ${total} tokens is used up`);
    this.#calls++;
  }

  /** What a call may generate at most, of what it asks for. */
  allow(maxTokens: number): number {
    const { max_output_tokens: output, max_total_tokens: total } = this.#limits;
    const left = Math.min(
      output === undefined ? Infinity : output - this.#output,
      total === undefined ? Infinity : total - this.#input - this.#output,
    );
    return Math.max(1, Math.min(maxTokens, left));
  }

  /** The code of the limit that made `allow` lower a call; a call cut there is the budget's end, not the model's. */
  get lowering(): 'incomplete/max_output_tokens' | 'incomplete/max_total_tokens' {
    const { max_output_tokens: output, max_total_tokens: total } = this.#limits;
    const outputLeft = output === undefined ? Infinity : output - this.#output;
    const totalLeft = total === undefined ? Infinity : total - this.#input - this.#output;
    return outputLeft <= totalLeft ? 'incomplete/max_output_tokens' : 'incomplete/max_total_tokens';
  }

  record(usage: CallUsage): void {
    this.#input += usage.inputTokens;
    this.#output += usage.outputTokens;
  }

  /** Whether a call of unknown usage leaves a limit unwatched. */
  get countsTokens(): boolean {
    const { max_input_tokens: input, max_output_tokens: output, max_total_tokens: total } = this.#limits;
    return input !== undefined || output !== undefined || total !== undefined;
  }
}
