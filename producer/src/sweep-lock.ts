import { readFile, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { FleetError, reasonOf } from '@hermes-fleet/shared';

const TOUCH_MS = 20_000;
/** A lock of another host that was not touched for so long is of a process that is gone. */
const STALE_MS = 120_000;

/**
 * Keeps a second process from writing the same files. The lock of a process that is gone is taken over.
 *
 * @throws FleetError `refused/invalid` while another process has it
 */
export async function lockSweep(out: string): Promise<AsyncDisposable> {
  const file = `${out}.lock`;
  for (;;) {
    try {
      await writeFile(file, `${process.pid} ${hostname()}`, { flag: 'wx' });
      const touching = setInterval(() => void utimes(file, new Date(), new Date()).catch(() => undefined), TOUCH_MS);
      touching.unref();
      return {
        [Symbol.asyncDispose]: async () => {
          clearInterval(touching);
          await rm(file, { force: true });
        },
      };
    } catch (error) {
      if (!(error instanceof Error) || !('code' in error) || error.code !== 'EEXIST')
        throw new FleetError('refused/config', `${file}: cannot be written (${reasonOf(error)})`, { cause: error });
      const [pid = '', host = ''] = (await readFile(file, 'utf8').catch(() => '')).split(' ');
      if (host === hostname() ? isAlive(Number(pid)) : await isFresh(file))
        throw new FleetError(
          'refused/invalid',
          `${out} is being written by process ${pid} on ${host} (if that is gone, remove ${file})`,
          { cause: error },
        );
      await rm(file, { force: true });
    }
  }
}

function isAlive(pid: number): boolean {
  if (pid === process.pid || !Number.isInteger(pid) || pid <= 0) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error instanceof Error && 'code' in error && error.code === 'EPERM';
  }
}

async function isFresh(file: string): Promise<boolean> {
  try {
    return Date.now() - (await stat(file)).mtimeMs < STALE_MS;
  } catch {
    return false;
  }
}
