import type { RunnerChannel } from '../channel/channel.ts';
import { type InsideHermes, type InsideRun, startInside } from './inside.ts';
import type { RunnerPool } from './runner-pool.ts';

/** The runner host that many activations share, or one of its own inside of the sandbox, which ends with the activation. */
export async function runnerOf({
  pool,
  hermes,
  ...run
}: Omit<InsideRun, 'hermes'> & {
  readonly pool: RunnerPool;
  /** Null: Hermes runs apart. */
  readonly hermes: InsideHermes | null;
}): Promise<{ readonly channel: RunnerChannel } & AsyncDisposable> {
  if (hermes === null) return { channel: await pool.acquire(run.signal), [Symbol.asyncDispose]: async () => undefined };
  const channel = await startInside({ ...run, hermes });
  return { channel, [Symbol.asyncDispose]: async () => await channel.close() };
}
