import {
  encodeFrames,
  encodeLine,
  FRAME,
  frameParser,
  type Line,
  lineParser,
} from '@hermes-fleet/worker/channel/frames';
import type { RunnerProcess } from '@hermes-fleet/worker/sandbox/provider';

const SIGKILL = 9;
const WHO = { agent: 'a0', parent: null, spawned_by: null };

interface Message {
  role: string;
  content: string | null;
  tool_calls?: { id: string; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
}

/**
 * A runner that speaks the real protocol and holds the smallest agent there is, in place of Hermes: it asks the model,
 * runs the `terminal` and `mcp__…` calls that the model wants, and ends with the first answer that wants none.
 */
const CLAIM_BYTES = 24 * 1024 * 1024;

export function stubRunner(onOutput: (chunk: Buffer) => void): RunnerProcess {
  let end: (how: { reason: string; oom: boolean }) => void = () => undefined;
  const ended = new Promise<{ reason: string; oom: boolean }>((resolve) => (end = resolve));
  const children = new Map<number, StubChild>();
  let isEnded = false;
  const send = (activation: number, kind: number, payload?: Uint8Array): void => {
    if (!isEnded) onOutput(encodeFrames(activation, kind, payload));
  };
  const parse = frameParser((activation, kind, payload) => {
    if (kind === FRAME.open) {
      const child = new StubChild(
        (line) => send(activation, FRAME.data, line),
        (rc) => {
          children.delete(activation);
          send(activation, FRAME.exit, Buffer.from(JSON.stringify({ rc, ms: 0, stderr: '', oom: false })));
        },
      );
      children.set(activation, child);
    } else if (kind === FRAME.data) children.get(activation)?.receive(payload);
    else if (kind === FRAME.kill) children.get(activation)?.kill(payload[0] ?? 0);
  });
  setImmediate(() =>
    send(
      0,
      FRAME.ready,
      Buffer.from(JSON.stringify({ s: 0, modules: 0, hermes: 'stub', python: 'none', uids: false })),
    ),
  );
  return {
    write: (data) => parse(Buffer.from(data)),
    queuedBytes: 0,
    ended,
    remove: async () => {
      isEnded = true;
      end({ reason: 'removed', oom: false });
      await ended;
    },
  };
}

class StubChild {
  readonly #write: (line: Buffer) => void;
  readonly #exit: (rc: number) => void;
  readonly #parse: (chunk: Buffer) => void;
  readonly #waiting = new Map<number, (line: Line) => void>();
  #next = 1;
  #messages: Message[] = [];
  #isOver = false;

  constructor(write: (line: Buffer) => void, exit: (rc: number) => void) {
    this.#write = write;
    this.#exit = exit;
    let isJobRead = false;
    this.#parse = lineParser((line) => {
      if (isJobRead) this.#waiting.get(Number(line.head['id']))?.(line);
      else {
        isJobRead = true;
        void this.#run(line);
      }
    });
  }

  receive(chunk: Buffer): void {
    this.#parse(chunk);
  }

  kill(signal: number): void {
    if (signal === SIGKILL) this.#end(-SIGKILL, undefined);
    else this.#end(143, 'interrupted');
  }

  async #run(job: Line): Promise<void> {
    const { user } = JSON.parse(job.body?.toString() ?? '{}') as { user: string };
    this.#messages = [{ role: 'user', content: user }];
    const turns = Number(job.head['max_turns']);
    for (let turn = 0; turn < turns; turn++) {
      const answer = await this.#ask(
        { op: 'model', who: { ...WHO, kind: 'main' }, path: '/chat/completions', method: 'POST' },
        { model: job.head['model'], messages: this.#messages, max_tokens: job.head['max_tokens'] },
      );
      if (answer.head['status'] !== 200) return this.#end(0, 'failed');
      const { choices } = JSON.parse(answer.body?.toString() ?? '{}') as { choices: { message: Message }[] };
      const message = choices[0]?.message;
      if (message === undefined) return this.#end(0, 'failed');
      this.#messages.push(message);
      if ((message.tool_calls ?? []).length === 0) return this.#end(0, 'completed');
      for (const call of message.tool_calls ?? [])
        this.#messages.push({
          role: 'tool',
          tool_call_id: call.id,
          content: await this.#tool(call, String(job.head['cwd'])),
        });
    }
    this.#end(0, 'incomplete', `max_iterations_reached(${turns}/${turns})`);
  }

  async #tool(call: { id: string; function: { name: string; arguments: string } }, cwd: string): Promise<string> {
    const args = JSON.parse(call.function.arguments) as Record<string, unknown>;
    const who = { ...WHO, call: call.id, tool: call.function.name };
    if (call.function.name === 'terminal') {
      const { head } = await this.#ask({
        op: 'exec',
        who,
        command: args['command'],
        cwd,
        timeout_s: args['timeout'] ?? 60,
        internal: args['internal'] === true,
      });
      return JSON.stringify({ output: head['output'], exit_code: head['code'] });
    }
    const [, server = '', tool = ''] = call.function.name.split('__');
    const answer = await this.#ask(
      { op: 'mcp', who, server, method: 'POST' },
      { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: tool, arguments: args } },
    );
    return answer.body?.toString() ?? '';
  }

  async #ask(head: object, body?: object): Promise<Line> {
    const id = this.#next++;
    const answered = new Promise<Line>((resolve) => this.#waiting.set(id, resolve));
    if (!this.#isOver)
      this.#write(encodeLine({ id, ...head }, body === undefined ? undefined : Buffer.from(JSON.stringify(body))));
    return await answered;
  }

  #end(rc: number, status: string | undefined, exitReason: string | null = null): void {
    if (this.#isOver) return;
    if (status !== undefined) {
      const claim = Buffer.from(JSON.stringify({ final: null, messages: this.#messages }));
      // As the real one: a claim that is too long for a line says nothing of its messages.
      const cut = Buffer.from(JSON.stringify({ final: null, messages: null, messages_cut: true }));
      const body = claim.length > CLAIM_BYTES ? cut : claim;
      this.#write(encodeLine({ op: 'result', status, exit_reason: exitReason, error: null }, body));
    }
    this.#isOver = true;
    this.#exit(rc);
  }
}
