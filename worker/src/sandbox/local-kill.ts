import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';

const PASSES = 20;
const hasProc = existsSync('/proc/self/environ');
/** Process groups of each mark, where the system has no /proc to find processes by. */
const groups = new Map<string, Set<number>>();

/** Remembers a process group that {@link killMarked} is to find. */
export function trackGroup(mark: string, group: number | undefined): void {
  if (hasProc || group === undefined) return;
  const known = groups.get(mark) ?? new Set<number>();
  groups.set(mark, known.add(group));
}

/** Kills a process group; one without members is success. */
export function killGroup(group: number | undefined): void {
  try {
    if (group !== undefined) process.kill(-group, 'SIGKILL');
  } catch {
    // It has no member any more.
  }
}

/**
 * Kills every process whose environment has the variable `mark` (`NAME=value`), those that left their group too. Looks
 * until there is none: a fork may race a pass.
 */
export async function killMarked(mark: string): Promise<void> {
  for (const group of groups.get(mark) ?? []) killGroup(group);
  groups.delete(mark);
  if (!hasProc) return;
  for (let pass = 0; pass < PASSES; pass++) {
    const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name) && name !== String(process.pid));
    const killed = await Promise.all(pids.map(async (pid) => await killIfMarked(pid, mark)));
    if (!killed.includes(true)) return;
  }
}

async function killIfMarked(pid: string, mark: string): Promise<boolean> {
  try {
    if (!(await readFile(`/proc/${pid}/environ`, 'latin1')).split('\0').includes(mark)) return false;
    process.kill(Number(pid), 'SIGKILL');
    return true;
  } catch {
    // Gone meanwhile, or another user's.
    return false;
  }
}
