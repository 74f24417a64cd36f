import { type FailureCode, FleetError, reasonOf } from '@hermes-fleet/shared';
import { longTimer, onAborted, reasonOfAbort } from '../cancellation.ts';

/** Longest wait for one answer of the engine that is no work of its own. */
export const CALL_MS = 30_000;

export interface CallOptions {
  readonly what: string;
  /** Code of a failure that the engine's own words do not tell apart. */
  readonly code: FailureCode;
  readonly signal?: AbortSignal;
  readonly deadlineMs?: number;
}

/** Status of an engine's error answer; dockerode puts it on the error. */
export function statusOf(error: unknown): number | undefined {
  const status: unknown = error instanceof Error && 'statusCode' in error ? error.statusCode : undefined;
  return typeof status === 'number' ? status : undefined;
}

const NOT_ANSWERING = /ECONNREFUSED|ENOENT|ECONNRESET|EPIPE|socket hang up|connect E|EACCES/;

/** What an engine's error means. The order counts: the more telling words first. */
export function codeOf(error: unknown, fallback: FailureCode): FailureCode {
  const reason = reasonOf(error);
  const status = statusOf(error);
  if (/no space left on device|disk quota exceeded/i.test(reason)) return 'infra/sandbox_disk';
  if (/fully subnetted|exchange full|cannot allocate memory|too many open files/i.test(reason)) return 'infra/capacity';
  // What the spec asks of the image, or of the engine, and neither has.
  if (/unable to find (user|group)|no matching entries in|not a directory/i.test(reason)) return 'infra/sandbox_image';
  if (/range of cpus|minimum memory limit|invalid (cpu|memory|pids)/i.test(reason)) return 'infra/sandbox_limit';
  if (
    /no such image|manifest unknown|repository does not exist|pull access denied|invalid reference format/i.test(reason)
  )
    return 'infra/sandbox_image';
  if (
    status === 404 ||
    /is not running|no such container|is paused|container .* is (dead|marked for removal)/i.test(reason)
  )
    return 'infra/sandbox_lost';
  if (status === undefined && NOT_ANSWERING.test(reason)) return 'infra/engine_lost';
  return fallback;
}

/**
 * One call to the engine, raced by our own deadline: dockerode has promises that never settle when the engine dies
 * between the headers and the end of an answer.
 *
 * @param onLate gets what a call made after all that was given up: a container that nobody else knows of
 * @throws FleetError by the engine's words, else `options.code`; `infra/engine_lost` at the deadline; the signal's reason
 */
export async function dockerCall<T>(
  options: CallOptions,
  call: () => Promise<T>,
  onLate: (made: T) => void | Promise<void> = () => undefined,
): Promise<T> {
  const { what, code, signal, deadlineMs = CALL_MS } = options;
  if (signal?.aborted === true) throw reasonOfAbort(signal);
  let timer: { clear(): void } | undefined;
  let stop: Disposable | undefined;
  let isGivenUp = false;
  try {
    const limit = new Promise<never>((_, reject) => {
      timer = longTimer(deadlineMs, () =>
        reject(new FleetError('infra/engine_lost', `the engine did not answer within ${deadlineMs} ms (${what})`)),
      );
      if (signal !== undefined) stop = onAborted(signal, () => reject(reasonOfAbort(signal)));
    });
    const work = call();
    void work
      .then(async (made) => {
        if (isGivenUp) await onLate(made);
      })
      .catch(() => undefined);
    return await Promise.race([work, limit]);
  } catch (error) {
    isGivenUp = true;
    if (error instanceof FleetError) throw error;
    throw new FleetError(codeOf(error, code), `${what} failed (${reasonOf(error)})`, { cause: error });
  } finally {
    timer?.clear();
    stop?.[Symbol.dispose]();
  }
}
