import { type ExactObject, type ExactValue, isExactObject, stringifyExact } from './exact-json.ts';

/** Fields of Gym's training Model Server, on the message or on the choice; prompt ids on the reply too (vLLM). */
const PROMPT = 'prompt_token_ids';
const GENERATED = ['generation_token_ids', 'generation_log_probs'];

/**
 * Takes token ids and log-probs out of replies: the record keeps them, the runner has no use for them and must not see
 * them. Prompt ids are kept as what they share with the sequence of an earlier call, and the rest; `continues` says whether
 * a prompt begins with the agent's previous prompt and generation, as one unbroken sequence.
 */
export class TokenRecord {
  /** Per agent, and apart for its auxiliary calls: the last call, and the sequence that it made. */
  readonly #last = new Map<string, { readonly act: string; readonly sequence: readonly string[] }>();

  /** Removes the fields from `reply`, and returns them as JSON; undefined where there are none. */
  take(act: string, agent: string, reply: ExactObject): string | undefined {
    const choices = reply['choices'];
    const choice = Array.isArray(choices) ? choices[0] : undefined;
    const holders = [reply, choice, isExactObject(choice) ? choice['message'] : undefined].filter((holder) =>
      isExactObject(holder),
    );
    const prompt = takeField(holders, PROMPT);
    const [ids, logProbs] = GENERATED.map((name) => takeField(holders, name));
    if (prompt === undefined && ids === undefined && logProbs === undefined) return undefined;
    const place = prompt === undefined ? undefined : this.#place(act, agent, prompt, ids ?? []);
    const stored: ExactObject = {
      prompt_token_ids: place?.prompt ?? null,
      generation_token_ids: ids ?? null,
      generation_log_probs: logProbs ?? null,
      continues: place?.continues ?? null,
    };
    return stringifyExact(stored);
  }

  /** Where a call stands in its agent's sequence: how much of it was there before. */
  #place(
    act: string,
    agent: string,
    prompt: readonly ExactValue[],
    generated: readonly ExactValue[],
  ): { readonly prompt: ExactObject; readonly continues: boolean } {
    const ids = prompt.map(stringifyExact);
    const last = this.#last.get(agent);
    const before = last?.sequence ?? [];
    let shared = 0;
    while (shared < ids.length && ids[shared] === before[shared]) shared++;
    this.#last.set(agent, { act, sequence: [...ids, ...generated.map(stringifyExact)] });
    return {
      prompt: {
        shared_with: shared === 0 ? null : (last?.act ?? null),
        shared: shared,
        rest: prompt.slice(shared),
      },
      continues: shared === before.length,
    };
  }
}

function takeField(holders: readonly ExactObject[], name: string): ExactValue[] | undefined {
  let found: ExactValue[] | undefined;
  for (const holder of holders) {
    const value = holder[name];
    if (Array.isArray(value)) found = value;
    delete holder[name];
  }
  return found;
}
