import { createHash } from 'node:crypto';

/** Major of the wire: part of the prefix, so that incompatible fleets never meet in one Redis. */
const WIRE_MAJOR = 1;

/** Digest that stands for a session id in keys, job ids, container names and labels: 32 hex characters. */
export function sessionKey(sessionId: string): string {
  return createHash('sha256').update(sessionId).digest('hex').slice(0, 32);
}

/** Digest of a command's body: what makes a repeat the same command. */
export function bodyDigest(body: string): string {
  return createHash('sha256').update(body).digest('base64url').slice(0, 22);
}

/** Names of all keys of a fleet in Redis. One hash tag, so one slot: works on Cluster, on one shard. */
export class Keys {
  /** Also the prefix that BullMQ gets. */
  readonly prefix: string;

  /** @param fleetId 1 to 64 of `[A-Za-z0-9._-]`; also the label of every container of the fleet */
  constructor(fleetId: string) {
    this.prefix = `{${fleetId}:${WIRE_MAJOR}}`;
  }

  /** Record of a session (hash); with `:m`, `:p`, `:r`, `:h` behind it: parked commands, payloads, results, message bodies. */
  record(key: string): string {
    return `${this.prefix}:s:${key}`;
  }
  payloads(key: string): string {
    return `${this.record(key)}:p`;
  }
  storedResults(key: string): string {
    return `${this.record(key)}:r`;
  }
  /** Message bodies of the session's journals by content hash. */
  messages(key: string): string {
    return `${this.record(key)}:h`;
  }
  /** Journal (stream) of the command with number `n`. */
  journal(key: string, n: number | string): string {
    return `${this.prefix}:j:${key}.${n}`;
  }
  results(replyTo: string): string {
    return `${this.prefix}:results:${replyTo}`;
  }
  leases(engine: string): string {
    return `${this.prefix}:le:${engine}`;
  }
  bound(engine: string): string {
    return `${this.prefix}:bound:${engine}`;
  }
  sweep(sweepId: string): string {
    return `${this.prefix}:sweep:${sweepId}`;
  }
  /** Session ids of a sweep, kept by its client and written before its submits. */
  sweepMembers(sweepId: string): string {
    return `${this.prefix}:sweep:${sweepId}:members`;
  }
  blob(key: string, n: number | string, fence: string): string {
    return `${this.prefix}:blob:${key}.${n}.${fence}`;
  }
  get due(): string {
    return `${this.prefix}:due`;
  }
  get engines(): string {
    return `${this.prefix}:engines`;
  }
  get streams(): string {
    return `${this.prefix}:streams`;
  }
  /** Channel of cancel messages: `<session key> <command id>`. */
  get cancelChannel(): string {
    return `${this.prefix}:cancel`;
  }
  /** Channel that says that a sandbox slot of an engine became free: the engine's id. */
  get slotsChannel(): string {
    return `${this.prefix}:slots`;
  }
}

/** Name of the queue of seeds for a provider, of commands of an engine's sessions, and of commands that any worker may run. */
export const newQueue = (provider: string): string => `new-${provider}`;
/** Name of the queue of seeds that borrow a sandbox of a named engine. */
export const newEngineQueue = (engine: string): string => `new-engine-${engine}`;
export const engineQueue = (engine: string): string => `engine-${engine}`;
export const ANY_QUEUE = 'any';
