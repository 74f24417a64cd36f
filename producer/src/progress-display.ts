import type { WriteStream } from 'node:tty';
import { progressLine, progressLines, type SweepState } from './sweep-progress.ts';

const LIVE_MS = 250;
const PLAIN_MS = 10_000;

/**
 * Shows a sweep on a stream until it is disposed of: live lines on a terminal that has a size, else one plain line every 10 s.
 */
export async function displayProgress(stream: WriteStream, state: () => SweepState): Promise<AsyncDisposable> {
  if (!stream.isTTY || !stream.rows) {
    const timer = setInterval(() => stream.write(`${progressLine(state())}\n`), PLAIN_MS);
    return {
      [Symbol.asyncDispose]: async () => {
        clearInterval(timer);
        stream.write(`${progressLine(state())}\n`);
        await Promise.resolve();
      },
    };
  }
  const { createLogUpdate } = await import('log-update');
  const log = createLogUpdate(stream);
  const draw = (): void => log(progressLines(state()).join('\n'));
  draw();
  const timer = setInterval(draw, LIVE_MS);
  return {
    [Symbol.asyncDispose]: async () => {
      clearInterval(timer);
      draw();
      log.done();
      await Promise.resolve();
    },
  };
}
