import { type Address, Dispatcher, type Job, Keys, Scripts, connectRedis } from '@hermes-fleet/shared';
import type { Redis } from 'ioredis';
import { World } from './world.ts';

/** Short times, so that a run of seconds sees many of them. */
export const LOCK_MS = 2000;
export const STALLED_MS = 700;
export const RENEW_MS = 600;
export const LEASE_MS = 3000;
export const ENGINE_TTL_MS = 2500;
export const ENGINE_GRACE_MS = 1500;
export const TIMING = { recheckMs: 2000, receiptMs: 300_000, lapseMs: LOCK_MS, graceMs: 1500 };
export const MAX_BEGINS = 60;
export const REPLY_TO = 'c';
export const SEED_QUEUE = 'new-stub';
export const ENGINES = ['h1', 'h2'] as const;

/** What a process of a fault run is told. */
export interface HarnessOptions {
  readonly name: string;
  readonly engine: string;
  readonly fleetId: string;
  readonly redisUrl: string;
  readonly worldUrl: string;
  /** Open sandboxes per engine. */
  readonly limit: number;
  /** Whether its event loop is blocked now and then. */
  readonly blocks: boolean;
}

export interface SeedPayload {
  readonly isBorrowed: boolean;
  readonly ms: number;
}
export interface ActivatePayload {
  readonly ms: number;
  readonly acts: number;
  /** Share of acts that are tools; the others are model calls. */
  readonly tools: number;
}

export const chance = (probability: number): boolean => Math.random() < probability;
export const pick = <T>(list: readonly T[]): T | undefined => list[Math.floor(Math.random() * list.length)];
export const addressOf = (key: string): Address => ({ key, replyTo: REPLY_TO });
export const borrowedName = (key: string): string => `borrowed.${key}`;
/** Below the takeover grace, so that a living owner is heard in time. */
export const retryStrategy = (tries: number): number => Math.min(50 * tries, 500);

/** The connections that every process of a fault run has. */
export class HarnessFleet {
  readonly keys: Keys;
  readonly redis: Redis;
  readonly scripts: Scripts;
  readonly world: World;
  readonly #dispatcher: Dispatcher;

  constructor(options: Pick<HarnessOptions, 'fleetId' | 'redisUrl' | 'worldUrl'>) {
    this.keys = new Keys(options.fleetId);
    this.redis = connectRedis(options.redisUrl, () => undefined, { retryStrategy });
    this.scripts = new Scripts(this.redis, this.keys, TIMING);
    this.#dispatcher = new Dispatcher(this.keys, this.redis);
    this.world = new World(options.worldUrl);
  }

  async add(job: Job | undefined, key: string): Promise<void> {
    await this.#dispatcher.add(job, key, REPLY_TO);
  }

  close(): void {
    this.redis.disconnect();
    this.world.redis.disconnect();
  }
}
