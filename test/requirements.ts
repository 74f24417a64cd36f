/** After which of the project's issues a requirement is due, in their order. */
export type Due = 'A' | 'B' | 'C' | 'D';

export interface Requirement {
  readonly due: Due;
  readonly sentence: string;
}

/** What is promised; tests cite the ids with `verifies`. "Original": what NeMo Gym's sandboxed Hermes promises or tests. */
export const REQUIREMENTS = {
  'seed:borrow': {
    due: 'B',
    sentence:
      '(original) Seed with sandbox access connects to that sandbox; the session never stops or removes it; close disconnects, and the owner can still use it, files and all.',
  },
  'seed:own': {
    due: 'A',
    sentence: '(original) Seed without access creates the configured sandbox; close removes it.',
  },
  'seed:idempotent': {
    due: 'A',
    sentence:
      '(original) The same id with the same body is the same session; with another body it is refused; after close it is refused; concurrent seeds of one id make one sandbox.',
  },
  'seed:no-debris': {
    due: 'A',
    sentence:
      '(original) A seed that fails or is cancelled half-way releases what it had acquired and leaves no usable session.',
  },
  'close:always': {
    due: 'A',
    sentence:
      "(original) Close works from every state, for unknown ids too (and then blocks a late seed); repeated closes give the same receipt for 300 s; close with another rollout's identity is refused; a failed close can be tried again.",
  },
  'close:stops-first': {
    due: 'A',
    sentence:
      '(original) Close stops the activation in flight, and confirms that nothing of it runs, before it answers; for an owned sandbox removal is the backstop.',
  },
  'close:observations': {
    due: 'B',
    sentence:
      '(original) Both ways of ending return what was observed of model and tools; after an agent exception, a crash of the runner or worker, a timeout, an OOM or a cancel too (beyond).',
  },
  'session:any-worker': {
    due: 'A',
    sentence:
      '(beyond) Seed, activations and close of one session may run on different workers; no state lives in a worker (the original requires one worker).',
  },
  'session:many-activations': {
    due: 'A',
    sentence:
      '(beyond) Several activations per session, one at a time, the later ones with the sandbox as the earlier ones left it.',
  },
  'session:expiry': { due: 'A', sentence: '(original) A session that nobody closes is closed by its own time limit.' },
  'hermes:one-pin': {
    due: 'A',
    sentence:
      '(original) One pin, in requirements.txt, with the `mcp` extra; what runs in a sandbox is that version, and results say which.',
  },
  'hermes:reuse-or-install': {
    due: 'B',
    sentence:
      '(original) Placement `inside`: Hermes is reused where it already imports at the pinned version, else installed, then checked again; a failed install names the reason.',
  },
  'hermes:any-image': {
    due: 'B',
    sentence:
      '(beyond) Any Linux image of the same CPU, glibc or musl, without network and without Python in it, works in both placements: missing shell tools, or for `inside` a packed Hermes runtime, are put in at seed.',
  },
  'hermes:same-prompt': {
    due: 'B',
    sentence:
      '(beyond) One task gives the same first request in plain Hermes 0.19.0, `apart`, `inside` and `local`, but for a listed set of differences; it describes the task sandbox and no backend that is not there.',
  },
  'hermes:one-exec': {
    due: 'B',
    sentence:
      '(original) A provider with nothing but a blocking exec and file transfer can serve a session (the runner stands apart, its tool commands go through that exec).',
  },
  'hermes:stop': {
    due: 'B',
    sentence:
      '(original) The shell that starts the runner records its PID and honours a stop marker, before and after it starts; a recycled PID is never signalled; an activation over its time is stopped the same way.',
  },
  'hermes:prompt': {
    due: 'B',
    sentence:
      "(original) Session system prompt, request instructions and the first system item are joined in that order after Hermes' own; text history is kept; the last item is the user's.",
  },
  'hermes:refuse-unsupported': {
    due: 'B',
    sentence:
      '(original) Request fields that Hermes cannot honour are refused by name unless left at their default; unknown future fields too.',
  },
  'hermes:reasoning': {
    due: 'B',
    sentence: '(original) `reasoning_content` of earlier assistant messages is sent back as it was.',
  },
  'model:all-clients': {
    due: 'B',
    sentence:
      "(original) The root agent, its iteration-limit summary, delegated children, every auxiliary client and a bare default client reach the rollout's Model Server URL and nothing else.",
  },
  'model:whole': { due: 'A', sentence: '(original) No request streams.' },
  'model:sampling': {
    due: 'B',
    sentence:
      '(original) temperature and the like reach the calls they are meant for; `thinking` settings belong to the Model Server and are not invented.',
  },
  'model:capture': {
    due: 'A',
    sentence:
      '(original, beyond) Each call is recorded outside the sandbox with ids, usage, timing, token ids and log-probs when given, and the agent that made it.',
  },
  'model:no-reach-needed': { due: 'A', sentence: '(beyond) No sandbox needs a network or a way to the Model Server.' },
  'mcp:granted': {
    due: 'A',
    sentence:
      "(original) A granted server is usable in that session's activations with the granted headers, and in no other session's.",
  },
  'mcp:required-down': {
    due: 'A',
    sentence:
      '(original) A required server that does not connect (refused, silent, not MCP, unauthorised) fails the activation before the first model call, naming it. An optional one is left out and recorded as a gap.',
  },
  'mcp:names': {
    due: 'A',
    sentence: "(original) The response says `mcp__<server>__<tool>`; captured calls keep Hermes' own name.",
  },
  'grant:refuse': {
    due: 'A',
    sentence:
      '(original) Another kind of required grant, and an MCP grant named like a Hermes toolset, are refused at seed; names that collide after cleaning too (beyond).',
  },
  'mcp:secrets': { due: 'A', sentence: '(beyond) Grant headers never enter a sandbox, a log, a job or a result.' },
  'job:ordered': {
    due: 'A',
    sentence: 'Commands of one session run one at a time, in order, on any worker of its engine, without polling.',
  },
  'job:once': { due: 'A', sentence: 'One terminal result per command, whatever is killed, frozen or cut.' },
  'job:begun-again': {
    due: 'A',
    sentence:
      'An activation whose worker is gone runs again only if no tool or MCP act of it had begun; else it ends `infra/worker_lost` with all that was recorded. Nothing half-done is silently repeated.',
  },
  'job:slots': {
    due: 'A',
    sentence: 'New sessions never starve the commands of open ones: 50 sessions on 2 slots all close.',
  },
  'redis:away': {
    due: 'C',
    sentence:
      'Redis absent for three lock durations: no activation is lost, no act doubled, results arrive afterwards.',
  },
  'cancel:signal': {
    due: 'A',
    sentence:
      "A cancel from any process reaches the job's abort signal and the process in the sandbox within a second; an accepted cancel ends as `cancelled`.",
  },
  'cancel:waiter': {
    due: 'A',
    sentence: '(original) A waiter that goes away does not cancel the activation; asking again joins or replays it.',
  },
  'result:stream': {
    due: 'A',
    sentence:
      "Results arrive on the client's stream, are kept until every group has read them, and survive a client that starts late or restarts.",
  },
  'result:class': {
    due: 'A',
    sentence:
      'N sessions in, N terminal results out; class, code, fault, retryable; an infrastructure fault is never scored; no call made is never `ok`.',
  },
  'result:budget': {
    due: 'B',
    sentence:
      '(beyond) A used-up budget (turns, calls, tokens, wall, idle; root and children together) ends the agent cleanly as `incomplete`, everything kept.',
  },
  'result:collect': {
    due: 'A',
    sentence: '(beyond) Files and command outputs named at seed are taken at close, bounded, into the result.',
  },
  'result:integrity': {
    due: 'B',
    sentence:
      "(beyond) Built from the worker's record; commands of the model, as root in the task sandbox, cannot change, forge, delay or drop it.",
  },
  'example:weather': {
    due: 'D',
    sentence:
      "(original) The five weather tasks over MCP, each answered with the tool's sentence; with the real Gym, reward 1.0 each.",
  },
  'example:coding': {
    due: 'B',
    sentence:
      '(original: SWE-bench Pro) A repository task in a task image: the agent edits and runs tests as root; the patch is in the sandbox and in the result.',
  },
} as const satisfies Record<string, Requirement>;

export type RequirementId = keyof typeof REQUIREMENTS;

export const requirementIds: ReadonlySet<string> = new Set(Object.keys(REQUIREMENTS));
