import { z } from 'zod';
import { HERMES_TOOLSETS } from './toolsets.ts';

const positive = (what: string) =>
  z
    // For the wrong kind of value only, or it would stand in for the sentences of the bounds.
    .number({ error: ({ code }) => (code === 'invalid_type' ? `must be a number of ${what}` : undefined) })
    .positive()
    .finite();
const count = () => z.number().int().min(1).max(Number.MAX_SAFE_INTEGER);
const seconds = () => positive('seconds');
/** Neither a path nor an argument nor a variable can hold a NUL: what follows it would be cut off without a word. */
const noNul = (text: string): boolean => !text.includes('\0');
const plain = (max: number) => z.string().max(max).refine(noNul, { error: 'must not hold a NUL character' });
const absolute = () => plain(4096).startsWith('/', 'must be an absolute path');

/** Sampling of every call of the root agent and its children; the Model Server decides what it does with it. */
const Sampling = z.strictObject({
  temperature: z.number().min(0).optional(),
  top_p: z.number().min(0).max(1).optional(),
  /** Random seed of the sampler. (The word `seed` alone means the command.) */
  seed: z.number().int().optional(),
  /** Merged into the body of each call as it is, for switches that only this Model Server knows. */
  extra_body: z.record(z.string(), z.json()).optional(),
});

export const ModelSpec = z.strictObject({
  /** Prefix of `/chat/completions`, as the worker reaches it. */
  base_url: z
    .url({ protocol: /^https?$/, error: 'must be an http or https URL' })
    .refine((url) => !/^[^/]*\/\/[^/?#]*@|[?#]/.test(url), {
      error: 'must be a plain prefix, without user, password, query or fragment',
    })
    .transform((url) => url.replace(/\/+$/, '')),
  name: z.string().min(1).max(512),
  /** Name of a credential that the worker has as `FLEET_CREDENTIAL_<NAME>`; sent as a bearer token. No key travels through Redis. */
  credential: z
    .string()
    .regex(/^[A-Z0-9_]{1,64}$/, 'a credential name is 1 to 64 of A-Z, 0-9 and "_"')
    .optional(),
  /** Most tokens that one call may generate. */
  max_tokens: count().default(8192),
  sampling: Sampling.default({}),
});
export type ModelSpec = z.infer<typeof ModelSpec>;

const providerName = (): z.ZodString =>
  z.string().regex(/^[a-z][a-z0-9-]{0,31}$/, 'a provider is named by lower-case letters, digits and "-"');

/** A sandbox that somebody else owns: used, then left as it is. */
const SandboxAccess = z.strictObject({
  connection: z.strictObject({
    kind: z.literal('direct'),
    provider: providerName(),
    /**
     * What the provider needs to find it; for `docker` NeMo Gym's `{"sandbox_id": <name or id of the container>, …}`. With
     * `engine`, the id of the engine that has it, only that engine's workers take the seed; without, any worker does.
     */
    descriptor: z
      .object({
        engine: z
          .string()
          .regex(/^[A-Za-z0-9._-]{1,128}$/, 'must be the id of an engine')
          .optional(),
      })
      .catchall(z.json()),
  }),
  /** Absolute path in the sandbox that commands start in; must be there. */
  workdir: absolute(),
});

const SandboxFile = z
  .strictObject({ path: plain(4096).min(1), text: z.string().optional(), base64: z.base64().optional() })
  .refine((file) => (file.text === undefined) !== (file.base64 === undefined), { error: 'give either text or base64' });

/** Most bytes that `sandbox.files` may hold together. */
const MAX_SEED_FILES_BYTES = 1024 * 1024;

const fileBytes = (file: { text?: string | undefined; base64?: string | undefined }): number =>
  file.text === undefined ? Buffer.byteLength(file.base64 ?? '', 'base64') : Buffer.byteLength(file.text);

const SandboxLimits = z.strictObject({
  cpus: positive('cpus').max(1024).default(2),
  memory_mib: z
    .number()
    .int()
    .min(16)
    .max(16 * 1024 * 1024)
    .default(4096),
  pids: z.number().int().min(16).max(4_194_304).default(512),
});

/** A sandbox that the session makes and, at close, removes. */
const OwnedSandbox = z.strictObject({
  access: z.undefined().optional(),
  /** Which provider of the fleet makes it: `docker` or `local`. */
  provider: providerName().default('docker'),
  image: z.string().min(1).max(512),
  workdir: absolute().default('/workspace'),
  /** User of the commands; the image's own when absent. */
  user: z
    .string()
    .regex(/^[A-Za-z0-9_.-]{1,64}(:[A-Za-z0-9_.-]{1,64})?$/, 'must be a user, or user:group')
    .optional(),
  env: z.record(z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, 'must be a variable name'), plain(131_072)).default({}),
  /** `none`: no network but the loopback. `open`: what the engine gives by default. */
  network: z.enum(['none', 'open']).default('none'),
  limits: SandboxLimits.default(() => SandboxLimits.parse({})),
  /** Written before the first activation; relative paths start at the workdir. At most 1 MiB together. */
  files: z
    .array(SandboxFile)
    .max(1000)
    .default([])
    .refine((files) => files.reduce((sum, file) => sum + fileBytes(file), 0) <= MAX_SEED_FILES_BYTES, {
      error: `files are ${MAX_SEED_FILES_BYTES} bytes together at most`,
    }),
});
export type OwnedSandbox = z.infer<typeof OwnedSandbox>;

const BorrowedSandbox = z.strictObject({ access: SandboxAccess });

export const SandboxSpec = z.union([OwnedSandbox, BorrowedSandbox]);
export type SandboxSpec = z.infer<typeof SandboxSpec>;

export function isBorrowed(spec: SandboxSpec): spec is z.infer<typeof BorrowedSandbox> {
  return spec.access !== undefined;
}

/** User of the commands in it; undefined: the one that the image or the owner of a borrowed sandbox has set. */
export function sandboxUser(spec: SandboxSpec): string | undefined {
  return isBorrowed(spec) ? undefined : spec.user;
}

/** How Hermes is set up for every activation of the session. */
export const HermesSpec = z.strictObject({
  /** Where Hermes runs: `apart` in a runner of its own, `inside` the task sandbox. */
  placement: z.enum(['apart', 'inside']).default('apart'),
  /** Hermes' own toolsets; tools of granted servers are there besides. */
  toolsets: z
    .array(
      z.string().refine((name) => HERMES_TOOLSETS.includes(name), {
        error: ({ input }) =>
          `${JSON.stringify(input)} is no toolset of Hermes (there are ${HERMES_TOOLSETS.join(', ')})`,
      }),
    )
    .max(64)
    .default(['terminal', 'file']),
  /** Follows Hermes' own prompt. */
  system_prompt: z.string().optional(),
  max_turns: z.number().int().min(1).max(100_000).default(90),
  /** Window of the model, in tokens. Hermes refuses less than 64,000. */
  context_length: z.number().int().min(64_000).max(100_000_000).default(131_072),
  /** Whether Hermes may summarise its history when the window fills; off, so that a trajectory stays one sequence. */
  compaction: z.boolean().default(false),
  delegation: z
    .strictObject({ max_turns: z.number().int().min(1).max(100_000).default(50) })
    .default({ max_turns: 50 }),
});
export type HermesSpec = z.infer<typeof HermesSpec>;

/** Limits of one activation, over root agent, children and auxiliary calls together. A used-up one ends it as `incomplete`. */
export const Budgets = z.strictObject({
  max_model_calls: count().optional(),
  max_input_tokens: count().optional(),
  max_output_tokens: count().optional(),
  max_total_tokens: count().optional(),
  /** Seconds without a frame from the runner and without an answer to it. */
  idle_time_s: seconds().optional(),
});
export type Budgets = z.infer<typeof Budgets>;

/** Limits of the phases, in seconds. Any finite positive number works, also above 24.8 days. */
export const Timeouts = z.strictObject({
  /** Over: `infra/timeout_seed`. */
  seed_s: seconds().default(300),
  /** For connecting to each granted tool server. */
  connect_s: seconds().default(30),
  /** One tool command; over: an error to the model, and the activation goes on. */
  tool_s: seconds().default(180),
  /** One try of a model call. */
  model_call_s: seconds().default(1800),
  /** Over: `incomplete/wall_time`. */
  activation_s: seconds().default(21_600),
  /** Over: `infra/timeout_close`. */
  close_s: seconds().default(60),
  /** From the first begin of the seed; over: the session is closed, `cancelled/expired`. */
  session_ttl_s: seconds().default(86_400),
});
export type Timeouts = z.infer<typeof Timeouts>;

/** What to take from the sandbox at close, before it goes. */
export const Collect = z.strictObject({
  commands: z
    .array(
      z.strictObject({
        name: z
          .string()
          .regex(/^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/, 'a name is 1 to 128 of A-Z, a-z, 0-9, ".", "_" and "-"'),
        argv: z.array(plain(131_072)).min(1).max(256),
      }),
    )
    .max(64)
    .default([])
    .refine((commands) => new Set(commands.map(({ name }) => name)).size === commands.length, {
      error: 'two commands have one name',
    }),
  /** Absolute, or relative to the workdir. */
  files: z.array(plain(4096).min(1)).max(256).default([]),
  /** Bytes kept in all. */
  max_bytes: z
    .number()
    .int()
    .min(1)
    .max(64 * 1024 * 1024)
    .default(1024 * 1024),
});
export type Collect = z.infer<typeof Collect>;
