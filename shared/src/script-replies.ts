import type { Job } from './dispatch.ts';
import type { CommandKind } from './results.ts';
import type { ResultClass } from './failure.ts';

/** Times of the session contract, in milliseconds. All processes of a fleet should use the same. */
export interface MailboxTiming {
  /** First re-check of a dispatch that nobody takes; doubles up to 64 times this. */
  readonly recheckMs: number;
  /** How long the record and results of a closed session are kept. */
  readonly receiptMs: number;
  /** Silence of an owner after which its command is handed out again. */
  readonly lapseMs: number;
  /** How long a silent owner stays marked before it is replaced. */
  readonly graceMs: number;
}

export const DEFAULT_TIMING: MailboxTiming = {
  recheckMs: 30_000,
  receiptMs: 86_400_000,
  lapseMs: 15_000,
  graceMs: 5_000,
};

/** Which session a script works on. */
export interface Address {
  readonly key: string;
  readonly replyTo: string;
}

export interface SubmitCommand {
  readonly kind: CommandKind;
  readonly commandId: string;
  readonly digest: string;
  readonly payload: string;
  readonly when?: 'now' | 'idle';
}

export interface SubmitOptions {
  readonly sessionId: string;
  /** Digest of rollout id and attempt; '' skips the check. */
  readonly identity: string;
  readonly parkedLimit: number;
  readonly unreadLimit: number;
  /** How long a seed may wait for a worker before its session expires. */
  readonly waitTtlMs: number;
  readonly sessionTtlMs: number;
  readonly seedQueue: string;
  readonly sweepId: string | undefined;
}

export interface SubmitAnswer {
  readonly status: 'accepted' | 'dup' | 'late' | 'refused';
  /** accepted: parked, dispatched, answered; dup and late: the command's letter; refused: why. */
  readonly detail: string;
}

export type Moved = { readonly moved: string };

/** What the owner of a running command needs. */
export interface CommandView {
  readonly verdict: 'run' | 'cancelled' | 'lost';
  readonly fence: string;
  readonly begins: number;
  readonly payload: string;
  readonly seedPayload: string;
  /** The seed's descriptor of the sandbox, JSON; '' when there is none. */
  readonly descriptor: string;
  readonly code: string;
  /** Deadline of the session, ms since the epoch by Redis' clock. */
  readonly deadline: number;
  readonly queue: string;
  readonly engine: string;
  readonly lease: string;
}

export type BeginAnswer =
  | { readonly status: 'gone' | 'not_yet' | 'alive' }
  | { readonly status: 'done'; readonly job: Job | undefined }
  | { readonly status: 'suspect'; readonly waitMs: number }
  | { readonly status: 'begun'; readonly view: CommandView };

export interface Taken {
  readonly job: Job;
  readonly view: CommandView;
}
export type Next =
  | { readonly job: Job | undefined; readonly taken: undefined }
  | { readonly job: undefined; readonly taken: Taken };

export type FinishAnswer =
  | { readonly status: 'gone' | 'fenced' | 'blob_missing' | 'lease_lost' }
  | { readonly status: 'again'; readonly job: Job }
  | { readonly status: 'cancel_pending'; readonly code: string }
  | { readonly status: 'dup'; readonly resultClass: string; readonly fence: string; readonly next: Next }
  | { readonly status: 'published'; readonly resultClass: ResultClass; readonly next: Next };

export interface FinishOptions {
  readonly commandId: string;
  readonly fence: string;
  readonly resultClass: ResultClass | 'again';
  readonly code: string;
  readonly body: string;
  readonly blob: string;
  readonly blobTtlMs: number;
  readonly holdMs: number;
  readonly queue: string;
  readonly engine: string;
  readonly descriptor: string;
  readonly released: boolean;
  readonly lost: boolean;
  /** Nonce for the next command; '' when the caller does not take it. */
  readonly nextNonce: string;
  readonly maxBegins: number;
}

export type Reply = (string | number)[];
export type Call = (...args: (string | number)[]) => Promise<unknown>;

export const text = (reply: Reply, index: number): string => String(reply[index] ?? '');

export function jobOf(reply: Reply, at: number): Job | undefined {
  const queue = text(reply, at);
  if (queue === '') return undefined;
  return { queue, jobId: text(reply, at + 1), name: text(reply, at + 2), commandId: text(reply, at + 3) };
}

function viewOf(reply: Reply, at: number): CommandView {
  const [verdict, fence, begins, , , payload, seedPayload, descriptor, code, deadline, queue, engine, lease] = reply
    .slice(at)
    .map(String);
  if (verdict !== 'run' && verdict !== 'cancelled' && verdict !== 'lost')
    throw new Error(`unknown verdict ${String(verdict)}`);
  return {
    verdict,
    fence: fence ?? '',
    begins: Number(begins),
    payload: payload ?? '',
    seedPayload: seedPayload ?? '',
    descriptor: descriptor ?? '',
    code: code ?? '',
    deadline: Number(deadline),
    queue: queue ?? '',
    engine: engine ?? '',
    lease: lease ?? '',
  };
}

function nextOf(reply: Reply, at: number): Next {
  if (reply.length > at + 4 && text(reply, at) === '') {
    const job = { queue: '', jobId: text(reply, at + 1), name: text(reply, at + 2), commandId: text(reply, at + 3) };
    return { job: undefined, taken: { job, view: viewOf(reply, at + 4) } };
  }
  return { job: jobOf(reply, at), taken: undefined };
}

export function isMoved(reply: Reply): boolean {
  return reply[0] === 'moved';
}

export function submitAnswers(reply: Reply, count: number): SubmitAnswer[] {
  return Array.from({ length: count }, (_, index) => ({
    status: text(reply, 4 + 2 * index) as SubmitAnswer['status'],
    detail: text(reply, 5 + 2 * index),
  }));
}

export function finishAnswer(reply: Reply): FinishAnswer {
  const status = text(reply, 0);
  switch (status) {
    case 'gone':
    case 'fenced':
    case 'blob_missing':
    case 'lease_lost':
      return { status };
    case 'again': {
      const job = jobOf(reply, 1);
      if (job === undefined) throw new Error('finish gave a command back without a job');
      return { status, job };
    }
    case 'cancel_pending':
      return { status, code: text(reply, 1) };
    case 'dup':
      return { status, resultClass: text(reply, 1), fence: text(reply, 2), next: nextOf(reply, 3) };
    default:
      return { status: 'published', resultClass: status as ResultClass, next: nextOf(reply, 1) };
  }
}

export function beginAnswer(reply: Reply): BeginAnswer {
  const status = text(reply, 0);
  if (status === 'gone' || status === 'not_yet' || status === 'alive') return { status };
  if (status === 'done') return { status, job: jobOf(reply, 1) };
  if (status === 'suspect') return { status, waitMs: Number(reply[1]) };
  return { status: 'begun', view: viewOf(reply, 0) };
}
