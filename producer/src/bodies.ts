import { promisify } from 'node:util';
import { gunzip } from 'node:zlib';
import { type CommandKind, type CommandResult, commandResult, type Keys, StoredResult } from '@hermes-fleet/shared';
import type { Redis } from 'ioredis';

const unpack = promisify(gunzip);
/** Far above what a worker publishes; bounds what a broken blob can inflate to. */
const MAX_INFLATED_BYTES = 1024 * 1024 * 1024;

/** Reads a stored result with its body, which may be a blob of its own. A blob that has expired leaves the body null. */
export async function readResult(
  redis: Redis,
  sessionId: string,
  commandId: string,
  kind: CommandKind,
  text: string,
): Promise<CommandResult> {
  const stored = StoredResult.parse(JSON.parse(text));
  if (stored.blob === '') return commandResult(sessionId, commandId, kind, stored, stored.body);
  const packed = await redis.getBuffer(stored.blob);
  const body: unknown =
    packed === null ? null : JSON.parse((await unpack(packed, { maxOutputLength: MAX_INFLATED_BYTES })).toString());
  return commandResult(sessionId, commandId, kind, stored, body);
}

export function kindOf(commandId: string): CommandKind {
  return commandId === 'seed' ? 'seed' : commandId.startsWith('close') ? 'close' : 'activate';
}

/** Result of a command out of the session's record; undefined while it has none. */
export async function storedResult(
  redis: Redis,
  keys: Keys,
  sessionKey: string,
  sessionId: string,
  commandId: string,
): Promise<CommandResult | undefined> {
  const text = await redis.hget(keys.storedResults(sessionKey), commandId);
  return text === null ? undefined : await readResult(redis, sessionId, commandId, kindOf(commandId), text);
}
