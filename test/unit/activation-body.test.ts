import { ActivationBody, FleetError, parseActivate, parseSeed } from '@hermes-fleet/shared';
import { expect, test } from 'vitest';
import type { Claim } from '@hermes-fleet/worker/hermes/activation';
import { activationBody, type BodyOptions } from '@hermes-fleet/worker/hermes/response';
import { trajectoryOf } from '@hermes-fleet/worker/hermes/trajectory';
import { verdictOf } from '@hermes-fleet/worker/hermes/verdict';
import {
  assistantMessage,
  child,
  RecordBuilder,
  ROOT_AGENT,
  toolMessage,
  userMessage,
} from '../setup/journal-record.ts';
import { seedBody } from '../setup/seed.ts';
import { verifies } from '../setup/verifies.ts';

const ask = userMessage('ask');
const claimed = (...messages: readonly Record<string, unknown>[]): Claim => ({
  status: 'completed',
  exitReason: 'text_response(finish_reason=stop)',
  error: undefined,
  summaryFailed: false,
  exception: undefined,
  mcp: [],
  messages: [ask, ...messages],
});
const OVER = { rc: 0, oom: false, detail: '' };

interface Facts {
  readonly claim?: Claim | undefined;
  readonly aborted?: FleetError;
  readonly modelFailure?: FleetError;
  readonly exit?: { readonly rc: number | null; readonly oom: boolean; readonly detail: string };
}

function judge(builder: RecordBuilder, facts: Facts = {}): string {
  const { aborted, modelFailure, exit = OVER } = facts;
  const claim = 'claim' in facts ? facts.claim : claimed();
  const { class: name, code } = verdictOf({
    aborted,
    modelFailure,
    end: { exit, claim },
    trajectory: trajectoryOf(builder.record),
  });
  return `${name}/${code}`;
}

function bodyOf(builder: RecordBuilder, change: Partial<BodyOptions> = {}): ActivationBody {
  const body = activationBody({
    seed: parseSeed(seedBody({ identity: { rollout_id: 'r', attempt: 2 } })),
    activate: parseActivate({ session_id: 's', activation_id: 'a', request: { input: 'ask', metadata: { k: 'v' } } }),
    responseId: 'k_2',
    trajectory: trajectoryOf(builder.record),
    verdict: { class: 'ok', code: 'done', message: null },
    claim: undefined,
    historyLength: 0,
    isolated: true,
    hermesVersion: '0.19.0',
    gaps: [],
    timings: { agent: 5 },
    ...change,
  });
  expect(ActivationBody.parse(body)).toEqual(body);
  return body;
}

const answered = () => new RecordBuilder().call({ content: 'done' }, [ask]);
const tool = { id: 'c', name: 'terminal', args: '{"command": "ls"}' };

verifies('result:class', 'how an activation ended is judged by its record', () => {
  expect(judge(answered())).toBe('ok/done');
  expect(judge(new RecordBuilder())).toBe('infra/hermes_crashed');
  expect(judge(new RecordBuilder().call({ error: 'x' }, [ask]))).toBe('infra/hermes_crashed');
  expect(judge(new RecordBuilder().call({ content: 'cut', finish: 'length' }))).toBe('incomplete/length');
  expect(judge(new RecordBuilder().call({ content: 'x', finish: 'content_filter' }))).toBe('failed/content_filter');
  for (const content of ['', ' \n', null])
    expect(judge(new RecordBuilder().call({ content, reasoning: 'hm' }))).toBe('failed/no_answer');
  expect(judge(new RecordBuilder().call({ tools: [tool] }), { claim: { ...claimed(), status: 'failed' } })).toBe(
    'failed/bad_tool_calls',
  );
});

verifies(
  'result:class',
  'an agent that made no call of its own is never ok, whatever it claims and others called',
  () => {
    const others = new RecordBuilder()
      .call({ content: 'x' }, [ask], { ...ROOT_AGENT, kind: 'auxiliary' })
      .call({ content: 'x' }, [ask], child('a1', 'c'));
    expect(judge(others, { claim: claimed({ role: 'assistant', content: 'done' }) })).toBe('infra/hermes_crashed');
  },
);

verifies('result:class', "what was none of the agent's doing is never scored as its failure", () => {
  const wanting = new RecordBuilder().call({ tools: [tool] }, [ask]);
  expect(judge(wanting, { claim: { ...claimed(), status: 'interrupted' } })).toBe('infra/runner_lost');
  const crashed = { ...claimed(), status: 'failed', exitReason: 'local_processing_error(KeyError)' };
  expect(judge(wanting, { claim: crashed })).toBe('infra/hermes_crashed');
  expect(judge(answered(), { claim: { ...claimed(), status: 'failed', error: 'x' } })).toBe('infra/hermes_crashed');
  const modelFailure = new FleetError('infra/model_unreachable', 'x');
  expect(judge(wanting, { modelFailure })).toBe('infra/model_unreachable');
});

test("the reason of the run's signal comes before all that the runner says", () => {
  const aborted = new FleetError('cancelled/by_caller', 'enough');
  expect(judge(answered(), { aborted })).toBe('cancelled/by_caller');
  expect(judge(answered(), { aborted: new FleetError('incomplete/wall_time', 'late'), claim: undefined })).toBe(
    'incomplete/wall_time',
  );
});

test('a runner that ended without a claim is told by how it ended', () => {
  const lost = (rc: number | null, oom = false): string =>
    judge(answered(), { claim: undefined, exit: { rc, oom, detail: 'x' } });
  expect([lost(-9, true), lost(70), lost(-9), lost(null)]).toEqual([
    'infra/runner_oom',
    'infra/hermes_crashed',
    'infra/runner_lost',
    'infra/runner_lost',
  ]);
});

test('the turn limit is incomplete, though its summary failed', () => {
  const claim = { ...claimed(), status: 'incomplete', exitReason: 'max_iterations_reached(2/2)' };
  const builder = answered().call({ error: 'infra/model_bad_reply', status: 500 }, [ask], {
    ...ROOT_AGENT,
    kind: 'summary',
  });
  expect(judge(builder, { claim, modelFailure: new FleetError('infra/model_bad_reply', 'x') })).toBe(
    'incomplete/max_turns',
  );
});

test('a set-up that failed names the server that failed it', () => {
  const claim = { ...claimed(), status: 'setup_failed', mcp: [{ server: 'w', error: 'no' }] };
  expect(judge(new RecordBuilder(), { claim })).toBe('infra/mcp_bad');
  expect(judge(new RecordBuilder(), { claim: { ...claim, mcp: [] } })).toBe('infra/runner_start');
});

test('the body is a Responses object with counts and usage, of root and others apart', () => {
  const builder = new RecordBuilder()
    .call({ content: 'a', tools: [tool], usage: [100, 10] }, [ask])
    .mcp('c', { x: 1 }, true)
    .call({ content: 'b', usage: [50, 5] }, [ask], child('a1', 'c'))
    .call({ error: 'infra/model_rate_limited', status: 429 }, [ask])
    .call({ content: 'done', usage: [200, 20] }, [ask, assistantMessage('a', tool), toolMessage('c', 'r')]);
  const body = bodyOf(builder);
  expect(body.response).toMatchObject({
    id: 'resp_k_2',
    object: 'response',
    status: 'completed',
    model: 'm',
    metadata: { k: 'v' },
  });
  expect(body.response).toMatchObject({ incomplete_details: null, error: null, created_at: 1_700_000_000 });
  expect(body.counts).toEqual({
    model_calls: 3,
    model_tries: 4,
    turns: 2,
    tool_calls: 1,
    mcp_calls: 1,
    mcp_errors: 1,
    agents: 2,
  });
  expect([body.usage.root.total_tokens, body.usage.others.total_tokens, body.usage.total.total_tokens]).toEqual([
    330, 55, 385,
  ]);
  expect(body).toMatchObject({
    complete: true,
    integrity: 'captured',
    usage: { complete: true },
    identity: { rollout_id: 'r', attempt: 2 },
  });
});

test.each([
  ['incomplete', 'max_turns', { status: 'incomplete', incomplete_details: { reason: 'max_turns' }, error: null }],
  ['failed', 'no_answer', { status: 'failed', error: { code: 'failed/no_answer' }, incomplete_details: null }],
  ['infra', 'runner_lost', { status: 'failed', error: { code: 'infra/runner_lost' } }],
  ['cancelled', 'by_close', { status: 'cancelled', error: null }],
] as const)('a result of class %s keeps its output and says %s', (name, code, wanted) => {
  const { response } = bodyOf(answered(), { verdict: { class: name, code, message: 'why' } });
  expect(response).toMatchObject(wanted);
  expect(response.output).toHaveLength(1);
});

test('usage is what was counted, and is not complete when a call in flight is not known', () => {
  const builder = new RecordBuilder();
  for (let at = 0; at < 4; at++) builder.call({ content: 'x', usage: [100, 10] }, [ask]);
  const body = bodyOf(builder.call(undefined, [ask]), {
    verdict: { class: 'cancelled', code: 'by_caller', message: 'x' },
  });
  expect(body.usage.total).toMatchObject({ input_tokens: 400, output_tokens: 40, total_tokens: 440 });
  expect([body.usage.complete, body.complete]).toEqual([false, false]);
});

test('usage is not complete when a server counted nothing, or a try got no answer', () => {
  expect(bodyOf(new RecordBuilder().call({ content: 'x', usage: null }, [ask])).usage.complete).toBe(false);
  const lost = bodyOf(new RecordBuilder().call({ error: 'infra/model_unreachable' }, [ask]));
  expect(lost.usage).toMatchObject({ complete: false, total: { total_tokens: 0 } });
  expect(bodyOf(answered().call({ error: 'infra/model_rate_limited', status: 429 }, [ask])).usage.complete).toBe(true);
});

test('calls of another run cost tokens and are no output', () => {
  const body = bodyOf(answered().begin('2.bb').call({ content: 'again' }, [ask]));
  expect(body.response.output).toHaveLength(1);
  expect(body.usage).toMatchObject({ root: { total_tokens: 15 }, others: { total_tokens: 15 } });
});

test('a record that was cut or has lost something is not complete', () => {
  expect(bodyOf(new RecordBuilder().call({ tools: [tool] }, [ask]).exec('c', undefined)).complete).toBe(false);
  expect(bodyOf(new RecordBuilder().call({ content: 'x', isLost: true }, [ask]))).toMatchObject({
    complete: false,
    gaps: [{ code: 'model_reply_lost' }],
  });
});

test('events that changed or refused something are gaps', () => {
  const builder = answered()
    .event({ kind: 'tool_repaired', asked: 'terminl', ran: 'terminal' })
    .event({ kind: 'http_refused', url: 'http://x' })
    .event({ kind: 'mcp_missing', server: 'w', error: 'no' })
    .event({ kind: 'agent_start' });
  expect(bodyOf(builder).gaps.map(({ code }) => code)).toEqual([
    'tool_name_repaired',
    'http_refused',
    'mcp_server_missing',
  ]);
});

const integrity = (builder: RecordBuilder, claim: Claim, change: Partial<BodyOptions> = {}) =>
  bodyOf(builder, { claim, ...change });

test('a claim of what no call said is a mismatch, and the record stands', () => {
  for (const content of ['invented', 'done and more']) {
    const body = integrity(answered(), claimed({ role: 'assistant', content }));
    expect(body).toMatchObject({ integrity: 'mismatch', response: { output: [{ content: [{ text: 'done' }] }] } });
    expect(body.integrity_notes[0]).toContain(content);
  }
  expect(integrity(answered(), claimed(assistantMessage('done'), assistantMessage('done'))).integrity).toBe('mismatch');
  expect(integrity(answered(), claimed(assistantMessage('done', tool))).integrity).toBe('mismatch');
  const called = new RecordBuilder().call({ content: 'x', tools: [tool] }, [ask]).call({ content: 'done' }, [ask]);
  for (const other of [[], [{ ...tool, args: '{"command":"rm"}' }]])
    expect(integrity(called, claimed(assistantMessage('x', ...other), assistantMessage('done'))).integrity).toBe(
      'mismatch',
    );
});

test.each([
  ['inline reasoning is stripped', { content: '<think>hm\nhm</think>\n\nthe answer' }, assistantMessage('the answer')],
  ['unclosed reasoning is stripped', { content: 'answer\n<thinking>and on' }, assistantMessage('answer')],
  ['halves of surrogate pairs are replaced', { content: 'a\uD83D' }, assistantMessage('a\uFFFD')],
  ['the text is trimmed', { content: '  answer\n' }, assistantMessage('answer')],
  ['the text is in parts', { content: 'answer' }, { role: 'assistant', content: [{ type: 'text', text: 'answer' }] }],
  ['an empty answer got a word', { content: '' }, assistantMessage('(empty)')],
  [
    'a doubled tool call is dropped',
    { tools: [tool, tool, { ...tool, args: '{}' }] },
    assistantMessage(null, tool, { ...tool, args: '{}' }),
  ],
  ['arguments are spelled otherwise', { tools: [tool] }, assistantMessage(null, { ...tool, args: '{"command":"ls"}' })],
  [
    'empty arguments became an object',
    { tools: [{ ...tool, args: '' }] },
    assistantMessage(null, { ...tool, args: '{}' }),
  ],
  [
    'broken arguments were mended',
    { tools: [{ ...tool, args: '{"command": "l' }] },
    assistantMessage(null, { ...tool, args: '{}' }),
  ],
])('a claim is no mismatch where %s', (_why, said, claim) => {
  const body = integrity(
    new RecordBuilder().call(said, [ask]).call({ content: 'done' }, [ask]),
    claimed(claim, assistantMessage('done')),
  );
  expect(body.integrity_notes).toEqual([]);
  expect(body.integrity).toBe('captured');
});

test('history that was handed in, a compacted one, and a claim without messages are no mismatch', () => {
  const history = [userMessage('first'), assistantMessage('earlier')];
  const claim = { ...claimed(), messages: [...history, ask, assistantMessage('done')] };
  expect(integrity(answered(), claim, { historyLength: 2 }).integrity).toBe('captured');
  expect(integrity(answered(), claim, { historyLength: 0 }).integrity).toBe('mismatch');
  const invented = claimed(assistantMessage('a summary of all'));
  expect(integrity(answered().event({ kind: 'compaction', who: ROOT_AGENT }), invented).integrity).toBe('captured');
  expect(integrity(answered(), { ...claimed(), messages: undefined }).integrity).toBe('captured');
  expect(integrity(answered(), claimed(assistantMessage('done')), { isolated: false }).integrity).toBe('claimed');
});
