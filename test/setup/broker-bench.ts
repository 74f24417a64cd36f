import { randomBytes } from 'node:crypto';
import { connectRedis, FleetError, Keys, Scripts } from '@hermes-fleet/shared';
import { Broker, type ToolCommand, type ToolResult } from '@hermes-fleet/worker/broker/broker';
import { Cancellation } from '@hermes-fleet/worker/cancellation';
import { Journal, type RecordedAct, readJournal } from '@hermes-fleet/worker/capture/journal';
import type { Sandbox } from '@hermes-fleet/worker/sandbox/provider';

const HOUR_MS = 3_600_000;

/** A broker over a real journal: the record says that our run owns the activation, which is all that a journal asks. */
export interface BrokerBench extends AsyncDisposable {
  readonly broker: Broker;
  readonly cancellation: Cancellation;
  readonly sessionKey: string;
  run(command: string, more?: Partial<ToolCommand>): Promise<ToolResult>;
  acts(): Promise<readonly RecordedAct[]>;
  /** Makes another run the owner, as a takeover does. */
  fence(): Promise<void>;
}

export interface BrokerBenchOptions {
  readonly redisUrl: string;
  readonly sandbox: Sandbox;
  /** The session of an earlier bench, to be its next owner. */
  readonly sessionKey?: string;
  readonly epoch?: string;
  readonly number?: string;
}

export async function openBroker(options: BrokerBenchOptions): Promise<BrokerBench> {
  const { sandbox, epoch = '1', number = '1', sessionKey = randomBytes(16).toString('hex') } = options;
  const redis = connectRedis(options.redisUrl, () => undefined);
  const keys = new Keys(`t${randomBytes(4).toString('hex')}`);
  const scripts = new Scripts(redis, keys);
  const deadline = Date.now() + HOUR_MS;
  const fence = `${epoch}.bench`;
  const record = keys.record(sessionKey);
  await redis.multi().hset(record, { run: 'c1', fe: fence, xp: deadline }).pexpireat(record, deadline).exec();
  const cancellation = new Cancellation();
  const at = { key: sessionKey, replyTo: 'nobody' };
  const ours = {
    scripts,
    at,
    commandId: 'c1',
    number,
    fence,
    deadline,
    cancellation,
    permissionMs: 30_000,
    keepMs: 1000,
  };
  const { signal } = cancellation;
  const broker = new Broker({
    sandbox,
    journal: new Journal(ours),
    sessionKey,
    number,
    epoch,
    user: undefined,
    signal,
  });
  let last = 0;
  return {
    broker,
    cancellation,
    sessionKey,
    run: async (command, more = {}) =>
      await broker.run({
        id: ++last,
        who: { agent: 'a0', parent: null, spawned_by: null },
        command,
        cwd: undefined,
        timeoutS: 60,
        stdin: undefined,
        isInternal: false,
        cap: 0,
        ...more,
      }),
    acts: async () => (await readJournal(scripts, sessionKey, number)).acts,
    fence: async () => void (await redis.hset(record, { fe: '9.other' })),
    async [Symbol.asyncDispose]() {
      cancellation.abort(new FleetError('cancelled/by_caller', 'the bench is closed'));
      await broker[Symbol.asyncDispose]();
      cancellation[Symbol.dispose]();
      redis.disconnect();
    },
  };
}
