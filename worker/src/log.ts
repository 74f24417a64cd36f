import { type Logger, pino } from 'pino';

export type Log = Logger;

/** Paths that may hold a secret whoever logs the object. */
const SECRETS = ['*.authorization', '*.api_key', '*.headers', 'env', '*.env', 'credentials'];

export function createLog(options: {
  readonly level: string;
  readonly version: string;
  readonly workerId: string;
}): Log {
  return pino({
    level: options.level,
    base: { service: 'hermes-fleet-worker', version: options.version, worker_id: options.workerId },
    redact: { paths: SECRETS, censor: '[secret]' },
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (level) => ({ level }) },
  });
}

/** Lets at most one line of a kind pass per period, with the number of those held back: an outage is a few lines, not a flood. */
export class RateLimitedWarning {
  readonly #last = new Map<string, { at: number; heldBack: number }>();
  readonly #log: Log;
  readonly #periodMs: number;

  constructor(log: Log, periodMs = 5_000) {
    this.#log = log;
    this.#periodMs = periodMs;
  }

  warn(message: string, fields: object = {}): void {
    const now = performance.now();
    const last = this.#last.get(message);
    if (last !== undefined && now - last.at < this.#periodMs) {
      last.heldBack++;
      return;
    }
    this.#last.set(message, { at: now, heldBack: 0 });
    this.#log.warn(
      { ...fields, ...(last === undefined || last.heldBack === 0 ? {} : { held_back: last.heldBack }) },
      message,
    );
  }
}
