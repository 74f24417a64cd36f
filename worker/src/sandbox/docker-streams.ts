import type { Duplex } from 'node:stream';

const HEADER_BYTES = 8;
const STDERR = 2;
const LAST_TYPE = 2;

export type StreamListener = (chunk: Buffer, stream: 'stdout' | 'stderr') => void;

/**
 * Takes the engine's multiplexed stream apart. Linear in its input, however small the frames: the library's own one
 * recurses per frame, and a program that writes byte by byte can overflow the stack with it.
 *
 * @throws Error on a frame of an unknown type: the engine reports its own trouble so
 */
export function demultiplexer(onChunk: StreamListener): { push(chunk: Buffer): void; isWhole(): boolean } {
  const header = Buffer.alloc(HEADER_BYTES);
  let have = 0;
  let left = 0;
  let stream: 'stdout' | 'stderr' = 'stdout';
  const push = (chunk: Buffer): void => {
    let at = 0;
    while (at < chunk.length) {
      if (left === 0) {
        const part = Math.min(HEADER_BYTES - have, chunk.length - at);
        chunk.copy(header, have, at, at + part);
        have += part;
        at += part;
        if (have < HEADER_BYTES) return;
        have = 0;
        const type = header[0] ?? LAST_TYPE + 1;
        if (type > LAST_TYPE) throw new Error(`the engine's stream has a frame of type ${type}`);
        stream = type === STDERR ? 'stderr' : 'stdout';
        left = header.readUInt32BE(4);
      } else {
        const part = Math.min(left, chunk.length - at);
        onChunk(chunk.subarray(at, at + part), stream);
        left -= part;
        at += part;
      }
    }
  };
  return { push, isWhole: () => have === 0 && left === 0 };
}

/** Reads a multiplexed connection to its end. Settles once, and never rejects; `lost` says when it broke. */
export async function readMultiplexed(
  connection: Duplex,
  onChunk: StreamListener,
): Promise<{ readonly lost: Error | undefined }> {
  const frames = demultiplexer(onChunk);
  return await new Promise((resolve) => {
    let broken: Error | undefined;
    connection.on('data', (chunk: Buffer) => {
      try {
        frames.push(chunk);
      } catch (error) {
        broken = error instanceof Error ? error : new Error(String(error));
        connection.destroy();
      }
    });
    // `on`: a second error without a listener would end the worker.
    connection.on('error', (error: Error) => (broken ??= error));
    connection.once('end', () => {
      if (!frames.isWhole()) broken ??= new Error('the stream was cut in mid frame');
      resolve({ lost: broken });
    });
    connection.once('close', () => resolve({ lost: broken ?? new Error('the stream was cut') }));
  });
}
