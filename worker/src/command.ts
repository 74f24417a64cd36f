import { gzip } from 'node:zlib';
import { promisify } from 'node:util';
import { type Address, type CommandView, patiently, type ResultClass, type Scripts } from '@hermes-fleet/shared';
import type { Cancellation } from './cancellation.ts';
import { wellFormedJson } from './capture/exact-json.ts';
import type { Config } from './config.ts';
import type { Engine } from './engine.ts';
import type { Lease } from './lease.ts';
import type { Log } from './log.ts';
import type { Run } from './runs.ts';

/** One command that this worker owns, as its processor sees it. */
export interface Command {
  readonly at: Address;
  readonly commandId: string;
  /** Number of the command in its session; names its journal. */
  readonly number: string;
  readonly kind: string;
  readonly view: CommandView;
  /** A seed's claim on a slot; its sandbox carries the name. */
  readonly lease: Lease | undefined;
  /** Where a seed makes its sandbox. */
  readonly engine: Engine | undefined;
  readonly cancellation: Cancellation;
  readonly log: Log;
}

/** How a processor ended; always a result, never a crash. */
export interface Outcome {
  readonly class: ResultClass | 'again';
  readonly code: string;
  readonly body: object | null;
  /** For the log. */
  readonly error?: unknown;
  /** A seed that succeeded: where the session's commands go, and how its sandbox is found again. */
  readonly seeded?: { readonly queue: string; readonly descriptor: string };
  /** The session has no sandbox any more. */
  readonly isSandboxLost?: boolean;
  /** Called once the result is out. */
  readonly settled?: () => Promise<void>;
  /** Removes what this run made and the record does not name. May be called again. */
  readonly release?: () => Promise<void>;
}

/** A larger body is a blob of its own, so that reading streams and records stays cheap. */
const INLINE_BYTES = 64 * 1024;
const MIB = 1024 * 1024;
const pack = promisify(gzip);

/** Body and, where it is large, the key of the blob that was just written for it. */
export async function publishableBody(
  scripts: Scripts,
  run: Run,
  outcome: Outcome,
  config: Config,
): Promise<{ readonly body: string; readonly blob: string }> {
  if (outcome.body === null) return { body: 'null', blob: '' };
  const text = boundedJson(outcome.body, config.FLEET_MAX_BODY_MIB * MIB);
  if (Buffer.byteLength(text) <= INLINE_BYTES) return { body: text, blob: '' };
  const blob = scripts.keys.blob(run.at.key, run.number, run.fence);
  // Short-lived until finish takes it: the loser of a race must leave nothing behind.
  const packed = await pack(Buffer.from(text), { level: 1 });
  await patiently(async () => await scripts.redis.set(blob, packed, 'PX', 4 * config.FLEET_LOCK_MS));
  return { body: 'null', blob };
}

/** JSON of a body within a bound: its longest texts are cut, ever shorter, and `complete` says so. */
export function boundedJson(body: object, maxBytes: number): string {
  // A caller's text may hold half a surrogate pair: written as an escape, it comes back as what Python cannot encode.
  const whole = wellFormedJson(JSON.stringify(body));
  if (Buffer.byteLength(whole) <= maxBytes) return whole;
  for (let limit = MIB; limit >= 64; limit = Math.floor(limit / 8)) {
    const cut: unknown = JSON.parse(whole, (key, value: unknown) => {
      if (typeof value === 'string' && value.length > limit)
        return `${wellFormed(value.slice(0, limit))} [cut: ${value.length} characters]`;
      if (Array.isArray(value) && value.length > limit && /token_ids|log_probs/.test(key)) return [];
      return value;
    });
    const text = JSON.stringify({ ...(cut as object), complete: false });
    if (Buffer.byteLength(text) <= maxBytes) return text;
  }
  return JSON.stringify({
    message: `the body was over ${maxBytes} bytes, even without its long texts`,
    complete: false,
  });
}

/** Halves of surrogate pairs become U+FFFD: the one rule for text that Python and Redis must be able to encode. */
export function wellFormed(text: string): string {
  return text.replaceAll(/[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/g, '\uFFFD');
}
