import { constants } from 'node:fs';
import { type FileHandle, lstat, mkdir, open, realpath } from 'node:fs/promises';
import path from 'node:path';
import { FleetError, reasonOf } from '@hermes-fleet/shared';
import type { FetchedFile, SandboxFile } from './provider.ts';

/** Where a box lies on the host. */
export interface LocalFolders {
  /** Everything of the box. */
  readonly root: string;
  /** Folder below it that stands for the workdir. */
  readonly workdir: string;
  /** The workdir that the session was promised; paths below it mean those below `workdir`. */
  readonly promised: string;
}

/** Path on the host of a path of the box. @throws FleetError `infra/sandbox_create` for one that leads out of it, by `..` or by a link */
async function pathOf(folders: LocalFolders, wanted: string): Promise<string> {
  const { root, workdir, promised } = folders;
  const own =
    path.isAbsolute(wanted) && `${path.normalize(wanted)}/`.startsWith(`${promised}/`)
      ? path.relative(promised, wanted)
      : wanted;
  const target = path.resolve(workdir, own);
  let existing = path.dirname(target);
  while ((await lstat(existing).catch(() => undefined)) === undefined) existing = path.dirname(existing);
  const [real, base] = await Promise.all([realpath(existing).catch(() => ''), realpath(root)]);
  if (real !== base && !real.startsWith(`${base}${path.sep}`))
    throw new FleetError('infra/sandbox_create', `${wanted} is outside of the sandbox`);
  return target;
}

export async function writeFiles(folders: LocalFolders, files: readonly SandboxFile[]): Promise<void> {
  for (const file of files) {
    const target = await pathOf(folders, file.path);
    try {
      await mkdir(path.dirname(target), { recursive: true });
      const { O_WRONLY, O_CREAT, O_TRUNC, O_NOFOLLOW, O_NONBLOCK } = constants;
      const handle = await open(target, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK);
      try {
        await handle.writeFile(file.content);
      } finally {
        await handle.close();
      }
    } catch (error) {
      const code = /ENOSPC|EDQUOT/.test(reasonOf(error)) ? 'infra/sandbox_disk' : 'infra/sandbox_create';
      throw new FleetError(code, `file ${file.path} could not be written (${reasonOf(error)})`, { cause: error });
    }
  }
}

export async function readFiles(
  folders: LocalFolders,
  paths: readonly string[],
  maxBytes: number,
): Promise<FetchedFile[]> {
  let left = maxBytes;
  const fetched: FetchedFile[] = [];
  for (const wanted of paths) {
    const file = await readOne(folders, wanted, left);
    left -= file.content?.length ?? 0;
    fetched.push(file);
  }
  return fetched;
}

async function readOne(folders: LocalFolders, wanted: string, maxBytes: number): Promise<FetchedFile> {
  const without = (problem: string): FetchedFile => ({ path: wanted, content: undefined, size: 0, problem });
  let target: string;
  try {
    target = await pathOf(folders, wanted);
  } catch {
    return without('outside of the sandbox');
  }
  const found = await lstat(target).catch(() => undefined);
  if (found === undefined) return without('missing');
  if (found.isSymbolicLink()) return without('is a link');
  if (found.isDirectory()) return without('is a directory');
  try {
    // A command may put a link or a pipe in its place at this moment.
    const handle = await open(target, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    try {
      const stats = await handle.stat();
      if (!stats.isFile()) return without('is no regular file');
      return { path: wanted, content: await readStart(handle, Math.min(stats.size, maxBytes)), size: stats.size };
    } finally {
      await handle.close();
    }
  } catch (error) {
    return without(`could not be read (${reasonOf(error)})`);
  }
}

async function readStart(handle: FileHandle, length: number): Promise<Buffer> {
  const buffer = Buffer.alloc(Math.max(0, length));
  let have = 0;
  while (have < buffer.length) {
    const { bytesRead } = await handle.read(buffer, have, buffer.length - have, have);
    if (bytesRead === 0) break;
    have += bytesRead;
  }
  return buffer.subarray(0, have);
}
