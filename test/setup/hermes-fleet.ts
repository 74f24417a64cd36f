import type {
  ActivateInput,
  ActivationBody,
  CloseBody,
  CommandResult,
  OutputItem,
  SeedBody,
  SeedInput,
} from '@hermes-fleet/shared';
import { inject } from 'vitest';
import { startFleet, type TestFleet } from './fleet.ts';
import type { McpTestServer } from './mcp-server.ts';
import type { Reply, Script } from './model-replies.ts';

/** The production worker's own times: a loaded machine must not look like a dead worker. Only its retries are quick. */
const PATIENT: Readonly<Record<string, string>> = {
  FLEET_LOCK_MS: '15000',
  FLEET_STALLED_INTERVAL_MS: '6000',
  FLEET_RENEW_MS: '3000',
  FLEET_TAKEOVER_GRACE_MS: '5000',
  FLEET_LEASE_MS: '15000',
  FLEET_RECHECK_MS: '30000',
  FLEET_REAP_GRACE_MS: '30000',
};

type Borrowed = Exclude<SeedInput['sandbox'], { image: string }>;

export type SeedMore = Omit<Partial<SeedInput>, 'sandbox' | 'model'> & {
  readonly sandbox?: Partial<Extract<SeedInput['sandbox'], { image: string }>> | Borrowed;
  readonly model?: Partial<SeedInput['model']>;
};

/** One session's three results. */
export interface Rollout {
  readonly seed: CommandResult<SeedBody>;
  readonly activation: CommandResult<ActivationBody>;
  readonly close: CommandResult<CloseBody>;
  /** `class/code` of the activation, or `ok`. */
  readonly verdict: string;
  readonly items: readonly OutputItem[];
}

export interface HermesFleet extends TestFleet {
  /** A seed for the model `name` in a real sandbox. */
  seedOf(sessionId: string, name: string, more?: SeedMore): SeedInput;
  /** A whole session with one activation. `name` is session and model; `script` is what the model says. */
  run(
    name: string,
    script: Script | Reply,
    more?: SeedMore,
    request?: Partial<ActivateInput['request']>,
  ): Promise<Rollout>;
  /** Hands one session in without waiting, with its close behind the activation. */
  begin(
    name: string,
    script: Script | Reply,
    more?: SeedMore,
    request?: Partial<ActivateInput['request']>,
  ): Promise<void>;
  /** The results of a session that was begun. */
  settle(name: string): Promise<Rollout>;
}

const isBorrowed = (sandbox: SeedMore['sandbox']): sandbox is Borrowed => sandbox?.access !== undefined;

/** The real thing: one worker process with real sandboxes and the real Hermes, shared by the tests of a file. */
export async function startHermesFleet(
  options: {
    readonly provider?: 'docker' | 'local';
    readonly program?: string;
    readonly env?: Readonly<Record<string, string>>;
  } = {},
): Promise<HermesFleet> {
  const provider = options.provider ?? 'docker';
  const fleet = await startFleet({
    redisUrl: inject('redisUrl'),
    program: options.program ?? 'worker/src/main.ts',
    provider,
    env: { ...PATIENT, FLEET_PROVIDERS: provider, FLEET_LOG_LEVEL: 'debug', ...options.env },
  });
  const seedOf: HermesFleet['seedOf'] = (sessionId, name, { sandbox, model, ...more } = {}) => ({
    session_id: sessionId,
    sandbox: isBorrowed(sandbox) ? sandbox : { provider, image: 'hermes-fleet-base:bookworm', ...sandbox },
    model: { base_url: fleet.model.url, name, ...model },
    ...more,
  });
  const begin: HermesFleet['begin'] = async (name, script, more, request) => {
    fleet.model.script(name, script);
    await fleet.client.submit({
      seed: seedOf(name, name, more),
      activations: [{ session_id: name, activation_id: 'a', request: { input: `do ${name}`, ...request } }],
      close: { session_id: name, when: 'idle' },
    });
  };
  const settle: HermesFleet['settle'] = async (name) => {
    const [seed, activation, close] = (await Promise.all(
      ['seed', 'a', 'close'].map(async (command) => await fleet.client.wait(name, command)),
    )) as [Rollout['seed'], Rollout['activation'], Rollout['close']];
    return {
      seed,
      activation,
      close,
      verdict: activation.class === 'ok' ? 'ok' : `${activation.class}/${activation.code}`,
      items: activation.body?.response.output ?? [],
    };
  };
  return Object.assign(fleet, {
    seedOf,
    begin,
    settle,
    run: async (...given: Parameters<HermesFleet['run']>) => {
      await begin(...given);
      return await settle(given[0]);
    },
  });
}

/** A grant of a test server. */
export const grantOf = (
  server: McpTestServer,
  name: string,
  more: { readonly required?: boolean; readonly headers?: Readonly<Record<string, string>> } = {},
): NonNullable<SeedInput['tool_accesses']>[number] => ({
  kind: 'mcp',
  name,
  required: more.required ?? true,
  connection: {
    transport: 'streamable_http',
    url: server.url,
    headers: { authorization: server.authorization, ...more.headers },
  },
});

/** Texts of all messages in the output. */
export const messagesIn = (items: readonly OutputItem[]): string[] =>
  items.flatMap((item) => (item.type === 'message' ? [item.content.map(({ text }) => text).join('')] : []));

/** Outputs of all tool calls. */
export const outputsIn = (items: readonly OutputItem[]): string[] =>
  items.flatMap((item) => (item.type === 'function_call_output' ? [item.output] : []));

export const callsIn = (items: readonly OutputItem[]): Extract<OutputItem, { type: 'function_call' }>[] =>
  items.filter((item) => item.type === 'function_call');
