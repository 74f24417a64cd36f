import { getEventListeners } from 'node:events';
import { FleetError } from '@hermes-fleet/shared';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import {
  anySignal,
  Cancellation,
  cancelledError,
  deadlineSignal,
  longTimer,
  onAborted,
  reasonOfAbort,
  untilAborted,
} from '@hermes-fleet/worker/cancellation';

const DAY_MS = 86_400_000;
const byCaller = new FleetError('cancelled/by_caller', 'enough');
const wall = new FleetError('incomplete/wall_time', 'late');

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

const listeners = (signal: AbortSignal): number => getEventListeners(signal, 'abort').length;

test('the first reason wins', () => {
  using cancellation = new Cancellation();
  expect(cancellation.reason).toBeUndefined();
  cancellation.abort(byCaller);
  cancellation.abort(wall);
  expect(cancellation.reason).toBe(byCaller);
  expect(cancellation.signal.reason).toBe(byCaller);
});

test('a time limit that comes after another reason changes nothing', () => {
  using cancellation = new Cancellation();
  cancellation.abortAfter(1000, 'incomplete/wall_time', 'late');
  cancellation.abort(byCaller);
  vi.advanceTimersByTime(2000);
  expect(cancellation.reason).toBe(byCaller);
});

test.each([1, 2 ** 31 - 1, 2 ** 31, 30 * DAY_MS, 400 * DAY_MS])(
  'a timer of %i ms elapses then, and not before',
  (ms) => {
    const elapsed = vi.fn();
    longTimer(ms, elapsed);
    vi.advanceTimersByTime(ms - 1);
    expect(elapsed).not.toHaveBeenCalled();
    vi.advanceTimersByTime(2);
    expect(elapsed).toHaveBeenCalledOnce();
    expect(vi.getTimerCount()).toBe(0);
  },
);

test('a timer can be cleared, in its second stretch too', () => {
  const elapsed = vi.fn();
  const timer = longTimer(60 * DAY_MS, elapsed);
  vi.advanceTimersByTime(40 * DAY_MS);
  timer.clear();
  vi.advanceTimersByTime(40 * DAY_MS);
  expect(elapsed).not.toHaveBeenCalled();
  expect(vi.getTimerCount()).toBe(0);
});

test('a cancellation that is disposed leaves no timer and aborts nothing', () => {
  const cancellation = new Cancellation();
  cancellation.abortAfter(10, 'incomplete/wall_time', 'late');
  cancellation.abortAfter(60 * DAY_MS, 'cancelled/expired', 'old');
  cancellation[Symbol.dispose]();
  expect(vi.getTimerCount()).toBe(0);
  expect(cancellation.signal.aborted).toBe(false);
});

test('a listener is called once, at once where the signal is aborted already, and not after it is taken off', () => {
  using cancellation = new Cancellation();
  const called = vi.fn();
  const taken = vi.fn();
  using _listening = onAborted(cancellation.signal, called);
  onAborted(cancellation.signal, taken)[Symbol.dispose]();
  cancellation.abort(byCaller);
  expect(called).toHaveBeenCalledOnce();
  expect(taken).not.toHaveBeenCalled();
  using _late = onAborted(cancellation.signal, called);
  expect(called).toHaveBeenCalledTimes(2);
});

test('work is waited for until the signal is aborted, and no listener stays', async () => {
  using cancellation = new Cancellation();
  await expect(untilAborted(cancellation.signal, Promise.resolve(7))).resolves.toBe(7);
  await expect(untilAborted(cancellation.signal, Promise.reject(wall))).rejects.toBe(wall);
  expect(listeners(cancellation.signal)).toBe(0);
  let fail: (error: Error) => void = () => undefined;
  const waiting = untilAborted(cancellation.signal, new Promise((_, reject) => (fail = reject)));
  cancellation.abort(byCaller);
  await expect(waiting).rejects.toBe(byCaller);
  // Its late failure is nobody's: unhandled, it would end the test run.
  fail(new Error('too late'));
  await expect(untilAborted(cancellation.signal, new Promise(() => undefined))).rejects.toBe(byCaller);
});

test('a combined signal has the reason of the first that is aborted', () => {
  const [one, other] = [new AbortController(), new AbortController()];
  const both = anySignal(one.signal, other.signal);
  other.abort(wall);
  one.abort(byCaller);
  expect(reasonOfAbort(both)).toBe(wall);
});

test('a reason that is no FleetError is our own fault, and is kept as the cause', () => {
  expect(reasonOfAbort(AbortSignal.abort('text'))).toMatchObject({ code: 'infra/internal', cause: 'text' });
});

test('a clean-up has a deadline of its own', () => {
  using deadline = deadlineSignal(1000, 'infra/timeout_close', 'too slow');
  vi.advanceTimersByTime(999);
  expect(deadline.signal.aborted).toBe(false);
  vi.advanceTimersByTime(1);
  expect(reasonOfAbort(deadline.signal)).toMatchObject({ code: 'infra/timeout_close', message: 'too slow' });
});

test('the words of the cancel script become codes', () => {
  const codes = ['by_caller', 'by_close', 'expired', 'something_new', 'constructor'].map(
    (code) => cancelledError(code).code,
  );
  expect(codes).toEqual([
    'cancelled/by_caller',
    'cancelled/by_close',
    'cancelled/expired',
    'cancelled/by_caller',
    'cancelled/by_caller',
  ]);
});
