import type { Cancellation } from '../cancellation.ts';
import { lostSandbox, type Sandbox } from './provider.ts';

/**
 * Ends an activation whose sandbox disappears or is restarted behind our back, also while no command runs in it: a model
 * that goes on would be paid for, and would find another machine. A paused one may be about to go on, and is left alone.
 */
export function watchSandbox(sandbox: Sandbox, everyMs: number, cancellation: Cancellation): Disposable {
  let isAsking = false;
  const look = async (): Promise<void> => {
    if (isAsking) return;
    isAsking = true;
    try {
      const state = await sandbox.state();
      if (state !== 'running' && state !== 'paused') cancellation.abort(lostSandbox(state));
    } catch {
      // An engine that does not answer is not a sandbox that is gone; its lease tells.
    } finally {
      isAsking = false;
    }
  };
  const timer = setInterval(() => void look(), everyMs);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
