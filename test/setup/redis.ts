import type { TestProject } from 'vitest/node';
import { startRedis } from './redis-server.ts';

declare module 'vitest' {
  export interface ProvidedContext {
    redisUrl: string;
  }
}

/** One real server for all files of a project; each test takes its own key prefix. */
export async function setup(project: TestProject): Promise<() => Promise<void>> {
  // eslint-disable-next-line node/no-process-env -- a global setup has no main that could hand it in
  const server = process.env['FLEET_TEST_REDIS_SERVER'];
  const redis = await startRedis(server === undefined ? {} : { server });
  project.provide('redisUrl', redis.url);
  return redis.stop;
}
