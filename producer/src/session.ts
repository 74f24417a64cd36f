import {
  type ActivationBody,
  type CloseBody,
  type CommandResult,
  FleetError,
  verdictOf,
  type FailureCode,
  type SeedBody,
} from '@hermes-fleet/shared';
import { randomUUID } from 'node:crypto';
import type { FleetClient, WaitOptions } from './client.ts';

export type ActivationRequest = Parameters<FleetClient['activate']>[0]['request'];

/** One seeded session, closed at the end of its scope: `await using session = await client.open(seed)`. */
export class Session implements AsyncDisposable {
  readonly id: string;
  readonly seeded: CommandResult<SeedBody>;
  readonly #client: FleetClient;
  #closing: Promise<CommandResult<CloseBody>> | undefined;

  /** @throws FleetError the seed's own code, when it is not ok */
  constructor(client: FleetClient, id: string, seeded: CommandResult<SeedBody>) {
    if (seeded.class !== 'ok') throw failureOf(seeded);
    this.#client = client;
    this.id = id;
    this.seeded = seeded;
  }

  /**
   * Runs the agent once on a text, or on a Responses request.
   *
   * @param options.activationId makes the call repeatable: the same id joins or replays. Default: a new one
   */
  async activate(
    request: string | ActivationRequest,
    options: WaitOptions & { readonly activationId?: string } = {},
  ): Promise<CommandResult<ActivationBody>> {
    const body = typeof request === 'string' ? { input: request } : request;
    return await this.#client.activate(
      { session_id: this.id, activation_id: options.activationId ?? randomUUID(), request: body },
      options,
    );
  }

  /** Ends what runs, and gives the session's last report: observations and what was collected. Closing again gives the same one. */
  async close(options: WaitOptions = {}): Promise<CommandResult<CloseBody>> {
    this.#closing ??= this.#client.close({ session_id: this.id }, options).catch((error: unknown) => {
      this.#closing = undefined;
      throw error;
    });
    return await this.#closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** Text of the last message of an activation; undefined when it has none. */
export function answerOf(result: CommandResult<ActivationBody>): string | undefined {
  const message = result.body?.response.output.findLast((item) => item.type === 'message');
  return message?.type === 'message' ? message.content.map(({ text }) => text).join('') : undefined;
}

function failureOf(result: CommandResult<SeedBody>): FleetError {
  const code = `${result.class}/${result.code}`;
  const message = result.body?.message ?? `the seed ended ${code}`;
  return new FleetError(
    verdictOf(result.class, result.code) === undefined ? 'infra/internal' : (code as FailureCode),
    message,
  );
}
