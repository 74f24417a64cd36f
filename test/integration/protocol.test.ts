import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { SMALL } from '../protocol/configurations.ts';
import { faultRun } from '../protocol/fault-run.ts';
import { planted } from '../protocol/planted.ts';
import { PLANTED_FAULTS } from '../protocol/planted-list.ts';
import { search } from '../protocol/search.ts';
import { type RedisServer, startRedis } from '../setup/redis-server.ts';

const SECONDS = 90;
const TIMEOUT = 120_000;

let server: RedisServer;
beforeAll(async () => {
  server = await startRedis({ args: ['--appendonly', 'no'] });
});
afterAll(async () => await server.stop());

describe('from every state that can be reached, all commands can end and no promise is broken', () => {
  test.for(Object.entries(SMALL))('%s', { timeout: TIMEOUT }, async ([, configuration]) => {
    const { violation, stuck, stuckTrace, isComplete } = await search(configuration, {
      redisUrl: server.url,
      seconds: SECONDS,
    });
    expect(violation).toBeUndefined();
    expect({ stuck, stuckTrace, isComplete }).toEqual({ stuck: 0, stuckTrace: [], isComplete: true });
  });
});

describe('the search sees a planted fault', () => {
  const quick = ['mOutage', 'mCancel', 'mTwo', 'mSeed', 'mClose', 'mReap', 'mDrain'];
  const seen = PLANTED_FAULTS.filter((fault) => fault.secondLine === undefined && quick.includes(fault.configuration));
  test.for(seen)('$what', { timeout: TIMEOUT }, async ({ configuration, from, to }) => {
    const fault = planted(from, to);
    const report = await search(SMALL[configuration], { redisUrl: server.url, seconds: SECONDS, edit: fault.edit });
    expect(fault.wasApplied()).toBe(true);
    expect(report.violation !== undefined || report.stuck > 0).toBe(true);
  });
});

test(
  'workers that die and freeze lose no result, double no act and leave nothing behind',
  { timeout: 180_000 },
  async () => {
    const report = await faultRun({ sessions: 60, seconds: 12, mode: 'faults' });
    expect(report.violations).toEqual([]);
    expect(report.accepted).toBeGreaterThan(100);
  },
);
