import { type Activate, FleetError, type InputItem, type Seed } from '@hermes-fleet/shared';
import { disabledTools, type SandboxProbe } from '../broker/probe.ts';
import { wellFormed } from '../command.ts';
import type { Sandbox } from '../sandbox/provider.ts';

/** A chat message, as Hermes takes its history. */
interface ChatMessage {
  role: 'user' | 'assistant' | 'system' | 'tool';
  content: string | null;
  reasoning_content?: string;
  tool_calls?: { id: string; type: 'function'; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
}

export interface Conversation {
  readonly system: string | undefined;
  readonly history: readonly ChatMessage[];
  readonly user: string;
}

type Content = Extract<InputItem, { content: unknown; role: string }>['content'];

function textOf(content: Content): string {
  return wellFormed(typeof content === 'string' ? content : content.map(({ text }) => text).join(''));
}

/**
 * Splits a request into what Hermes is told: the system text (session's prompt, instructions, first system item, in that
 * order), the history, and the user's last message.
 */
export function conversationOf(seed: Seed, request: Activate['request']): Conversation {
  const items: InputItem[] =
    typeof request.input === 'string' ? [{ role: 'user', content: request.input }] : [...request.input];
  const last = items.pop();
  if (last === undefined || !('role' in last))
    throw new FleetError('refused/invalid', 'the last item of input must be a message of the user');
  const firstSystem = items.findIndex((item) => 'role' in item && item.role === 'system');
  const [system] = firstSystem < 0 ? [] : items.splice(firstSystem, 1);
  const parts = [
    seed.hermes.system_prompt,
    request.instructions ?? undefined,
    system !== undefined && 'role' in system ? textOf(system.content) : undefined,
  ];
  const joined = parts.filter((part) => part !== undefined && part !== '').join('\n\n');
  return { system: joined === '' ? undefined : joined, history: historyOf(items), user: textOf(last.content) };
}

/** Reasoning and tool calls join the assistant message that they belong to. */
function historyOf(items: readonly InputItem[]): ChatMessage[] {
  const messages: ChatMessage[] = [];
  let reasoning: string | undefined;
  const assistant = (): ChatMessage => {
    const open = messages.at(-1);
    if (open?.role === 'assistant' && reasoning === undefined) return open;
    const fresh: ChatMessage = {
      role: 'assistant',
      content: null,
      ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    };
    reasoning = undefined;
    messages.push(fresh);
    return fresh;
  };
  // Reasoning that nothing followed is a message of its own, and not the thoughts of a later one.
  const flush = (): void => {
    if (reasoning !== undefined) assistant().content = '';
  };
  for (const item of items) {
    if (
      ('role' in item && item.role !== 'assistant') ||
      item.type === 'function_call_output' ||
      item.type === 'reasoning'
    )
      flush();
    if ('role' in item) {
      if (item.role === 'assistant') {
        const message = assistant();
        if (message.content === null && message.tool_calls === undefined) message.content = textOf(item.content);
        else messages.push({ role: 'assistant', content: textOf(item.content) });
      } else messages.push({ role: item.role, content: textOf(item.content) });
    } else if (item.type === 'reasoning')
      reasoning = wellFormed(
        item.content?.map(({ text }) => text).join('') ?? item.summary.map(({ text }) => text).join(''),
      );
    else if (item.type === 'function_call')
      (assistant().tool_calls ??= []).push({
        id: item.call_id,
        type: 'function',
        function: { name: item.name, arguments: wellFormed(item.arguments) },
      });
    else if (item.type === 'function_call_output')
      messages.push({ role: 'tool', tool_call_id: item.call_id, content: textOf(item.output) });
  }
  flush();
  return messages;
}

/** What differs between two runs of one rollout unless it is pinned; `seed` is a text, not a number. */
export interface Pin {
  /** ISO date and time that Hermes takes for now: the day of the seed. */
  readonly now: string;
  readonly seed: string;
}

export interface JobOptions {
  readonly seed: Seed;
  readonly request: Activate['request'];
  readonly conversation: Conversation;
  readonly sandbox: Sandbox;
  /** Absolute folder in it for files of Hermes' own. */
  readonly tempDir: string;
  readonly probe: SandboxProbe;
  /** Granted servers that are connected. */
  readonly servers: readonly string[];
  readonly pin: Pin;
}

/** The first line to a runner child (`worker/runner/PROTOCOL.md`): head and body. */
export function jobOf(options: JobOptions): { readonly head: object; readonly body: Buffer } {
  const { seed, request, conversation, sandbox, tempDir, probe, servers, pin } = options;
  const { model, hermes, tool_accesses: grants, timeouts } = seed;
  const required = new Set(grants.filter((grant) => grant.required).map(({ name }) => name));
  const head = {
    model: model.name,
    max_tokens: model.max_tokens,
    max_turns: hermes.max_turns,
    context_length: hermes.context_length,
    compaction: hermes.compaction,
    delegation_max_turns: hermes.delegation.max_turns,
    toolsets: hermes.toolsets,
    disabled_tools: disabledTools(probe),
    system: conversation.system ?? null,
    cwd: sandbox.workdir,
    temp_dir: tempDir,
    shell: sandbox.shell.isBash ? 'bash' : 'sh',
    tool_timeout_s: timeouts.tool_s,
    probe: probe.text,
    session: pin.seed,
    pin,
    request_overrides: overridesOf(model.sampling, request),
    mcp: Object.fromEntries(servers.map((name) => [name, { required: required.has(name) }])),
    resident_shell: sandbox.openProcess !== undefined,
  };
  return { head, body: Buffer.from(JSON.stringify({ user: conversation.user, history: conversation.history })) };
}

/** The session's sampling, overlaid by the request's. */
function overridesOf(sampling: Seed['model']['sampling'], request: Activate['request']): object | null {
  const merged = {
    ...sampling,
    ...(request.temperature == null ? {} : { temperature: request.temperature }),
    ...(request.top_p == null ? {} : { top_p: request.top_p }),
  };
  const { extra_body: extra, ...plain } = merged;
  const overrides = { ...plain, ...(extra === undefined ? {} : { extra_body: extra }) };
  return Object.keys(overrides).length === 0 ? null : overrides;
}
