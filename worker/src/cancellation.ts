import { FleetError, type FailureCode } from '@hermes-fleet/shared';

/** setTimeout's limit (2^31 - 1 ms); a longer one would fire at once. */
const LONGEST_TIMEOUT_MS = 2_147_483_647;

/** A timer of any length. Does not keep the process alive. */
export function longTimer(ms: number, onElapsed: () => void): { clear(): void } {
  let timer: NodeJS.Timeout;
  const end = performance.now() + ms;
  const arm = (): void => {
    const left = end - performance.now();
    timer = setTimeout(
      () => (left > LONGEST_TIMEOUT_MS ? arm() : onElapsed()),
      Math.max(0, Math.min(left, LONGEST_TIMEOUT_MS)),
    );
    timer.unref();
  };
  arm();
  return { clear: () => clearTimeout(timer) };
}

/** Calls `listener` when the signal is or becomes aborted; disposing takes the listener off. */
export function onAborted(signal: AbortSignal, listener: () => void): Disposable {
  if (signal.aborted) listener();
  else signal.addEventListener('abort', listener, { once: true });
  return { [Symbol.dispose]: () => signal.removeEventListener('abort', listener) };
}

/** The reason of an aborted signal as what it is: always a FleetError in this code base. */
export function reasonOfAbort(signal: AbortSignal): FleetError {
  const reason: unknown = signal.reason;
  return reason instanceof FleetError
    ? reason
    : new FleetError('infra/internal', 'aborted without a reason', { cause: reason });
}

/**
 * Settles with `work`, or rejects with the signal's reason as soon as it is aborted: for work that has no way to be told.
 * The work's late end, good or bad, is dropped.
 */
export async function untilAborted<T>(signal: AbortSignal, work: Promise<T>): Promise<T> {
  let stop: Disposable | undefined;
  const aborted = new Promise<never>((_, reject) => {
    stop = onAborted(signal, () => reject(reasonOfAbort(signal)));
  });
  try {
    return await Promise.race([work, aborted]);
  } finally {
    stop?.[Symbol.dispose]();
    aborted.catch(() => undefined);
    work.catch(() => undefined);
  }
}

/**
 * Everything that can end a run: job abort, cancel, time limit, budget, fence raised, lease lost, shutdown. The first
 * reason wins and is the typed reason of `signal`.
 */
export class Cancellation implements Disposable {
  readonly #controller = new AbortController();
  readonly #timers: { clear(): void }[] = [];

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  get reason(): FleetError | undefined {
    return this.signal.aborted ? reasonOfAbort(this.signal) : undefined;
  }

  abort(reason: FleetError): void {
    if (!this.signal.aborted) this.#controller.abort(reason);
  }

  /** Aborts with `code` after `ms`, unless disposed before. */
  abortAfter(ms: number, code: FailureCode, message: string): void {
    this.#timers.push(longTimer(ms, () => this.abort(new FleetError(code, message))));
  }

  [Symbol.dispose](): void {
    for (const timer of this.#timers) timer.clear();
  }
}

/** A signal for clean-up: its own deadline, and nothing of the activation's. */
export function deadlineSignal(
  ms: number,
  code: FailureCode,
  message: string,
): { readonly signal: AbortSignal } & Disposable {
  const cancellation = new Cancellation();
  cancellation.abortAfter(ms, code, message);
  return { signal: cancellation.signal, [Symbol.dispose]: () => cancellation[Symbol.dispose]() };
}

/** Combines signals; the first that is aborted gives the reason. */
export function anySignal(...signals: AbortSignal[]): AbortSignal {
  return AbortSignal.any(signals);
}

/** The error of an accepted cancel, by the code that the script told. */
export function cancelledError(code: string): FleetError {
  const known = {
    by_caller: 'cancelled/by_caller',
    by_close: 'cancelled/by_close',
    expired: 'cancelled/expired',
  } as const;
  return new FleetError(
    Object.hasOwn(known, code) ? known[code as keyof typeof known] : 'cancelled/by_caller',
    `cancelled (${code})`,
  );
}
