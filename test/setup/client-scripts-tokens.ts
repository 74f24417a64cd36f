import type { OutputItem } from '@hermes-fleet/shared';
import type { JournalRecord } from '@hermes-fleet/worker/capture/journal';
import type { CallTokens } from '@hermes-fleet/worker/hermes/trajectory';
import type { TestFleet } from './fleet.ts';
import type { ChatMessage } from './model-replies.ts';
import { tokenFields } from './model-tokens.ts';

type TokenFields = { readonly [Field in keyof ReturnType<typeof tokenFields>]?: number[] | undefined };

const named = (fields: TokenFields): Omit<CallTokens, 'continues'> => ({
  promptIds: fields.prompt_token_ids,
  generationIds: fields.generation_token_ids,
  logProbs: fields.generation_log_probs,
});

/** What the Model Server said of the call that asked with these messages. */
export function serverTokens(
  fleet: TestFleet,
  name: string,
): (record: JournalRecord, messages: readonly string[]) => Omit<CallTokens, 'continues'> | undefined {
  const said = new Map<string, Omit<CallTokens, 'continues'>>();
  for (const { body, reply } of fleet.model.callsOf(name))
    if (body !== undefined && reply?.kind === 'completion')
      said.set(
        JSON.stringify(body.messages),
        named(tokenFields(body.messages, reply.message as unknown as ChatMessage)),
      );
  return ({ texts }, messages) => said.get(`[${messages.map((hash) => texts.get(hash)).join(',')}]`);
}

/** Token fields of an item, where it has any. */
export const tokensOf = (item: OutputItem): Omit<CallTokens, 'continues'>[] =>
  'generation_token_ids' in item ? [named(item)] : [];
