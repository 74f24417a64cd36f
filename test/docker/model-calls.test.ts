import { readFileSync } from 'node:fs';
import path from 'node:path';
import { afterAll, beforeAll, expect } from 'vitest';
import { freePort } from '../setup/redis-server.ts';
import { type HermesFleet, messagesIn, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import {
  badGateway,
  callTool,
  cutSocket,
  headersOnly,
  raw,
  type Reply,
  say,
  sequence,
  silence,
  status,
  tooManyRequests,
  turns,
} from '../setup/model-replies.ts';
import { ModelServer } from '../setup/model-server.ts';
import { ROOT } from '../setup/processes.ts';
import { verifies } from '../setup/verifies.ts';

const TRIES = 3;
let fleet: HermesFleet;
let guarded: ModelServer;

beforeAll(async () => {
  guarded = await ModelServer.start({ token: 'MARKER-KEY-31c0' });
  fleet = await startHermesFleet({
    env: {
      FLEET_MODEL_TRIES: String(TRIES),
      FLEET_CREDENTIAL_GOOD: 'MARKER-KEY-31c0',
      FLEET_CREDENTIAL_BAD: 'MARKER-KEY-wrong',
    },
  });
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
  await guarded.close();
});

verifies('hermes:one-pin', 'results say which Hermes ran, and it is the one that requirements.txt pins', async () => {
  const pin = /^hermes-agent\[mcp\]==(\S+)$/m.exec(readFileSync(path.join(ROOT, 'requirements.txt'), 'utf8'))?.[1];
  const { seed, activation } = await fleet.run('pin', say('done'));
  expect(pin).toBeDefined();
  expect(seed.body?.hermes_version).toBe(pin);
  expect(activation.body?.hermes_version).toBe(pin);
});

verifies('model:capture', 'two runs of one task make the same first request, byte for byte', async () => {
  const task = { input: 'the very same task' };
  fleet.model.script('twin', turns([callTool('terminal', { command: 'pwd' }, 'c1'), say('done')]));
  const identities = ['twin-1', 'twin-2'];
  const results = await Promise.all(
    identities.map(async (id) => {
      await using session = await fleet.client.open(fleet.seedOf(id, 'twin'));
      return await session.activate(task.input);
    }),
  );
  expect(results.map((result) => result.class)).toEqual(['ok', 'ok']);
  const [first, second, third, fourth] = fleet.model
    .callsOf('twin')
    .toSorted((one, other) => (one.body?.messages.length ?? 0) - (other.body?.messages.length ?? 0))
    .map(({ bodyText }) => bodyText);
  expect(first).toBe(second);
  expect(third).toBe(fourth);
  expect(first?.length).toBeGreaterThan(10_000);
});

verifies('model:capture', 'each call is recorded with its usage, its ids, its tokens and its time', async () => {
  const usage = {
    prompt_tokens: 1000,
    completion_tokens: 20,
    total_tokens: 1020,
    prompt_tokens_details: { cached_tokens: 600 },
    completion_tokens_details: { reasoning_tokens: 7 },
  };
  const { verdict, activation, items, close } = await fleet.run(
    'recorded',
    turns([
      { ...callTool('terminal', { command: 'echo hi' }), usage, withTokens: true },
      { ...say('done'), usage, withTokens: true },
    ]),
  );
  expect(verdict).toBe('ok');
  expect(activation.body?.usage.total).toEqual({
    input_tokens: 2000,
    input_tokens_details: { cached_tokens: 1200 },
    output_tokens: 40,
    output_tokens_details: { reasoning_tokens: 14 },
    total_tokens: 2040,
  });
  expect(activation.body?.usage.complete).toBe(true);
  expect(activation.body?.complete).toBe(true);
  const [call, , answer] = items;
  for (const item of [call, answer]) {
    if (item === undefined || item.type === 'function_call_output') throw new Error('not an item of the model');
    expect(item.generation_token_ids?.length).toBeGreaterThan(0);
    expect(item.generation_log_probs).toHaveLength(item.generation_token_ids?.length ?? 0);
  }
  // The runner has no use for them, and Hermes would send them back.
  expect(fleet.model.callsOf('recorded').at(-1)?.bodyText).not.toContain('token_ids');
  const [agent] = close.body?.observations.records.filter((record) => record.kind === 'agent_invocation') ?? [];
  expect(agent?.model_calls?.map(({ response_id: id }) => id?.startsWith('chatcmpl-'))).toEqual([true, true]);
});

verifies(
  ['model:capture', 'result:class'],
  'what may pass is tried again, a bounded number of times, and then has the code of its cause',
  async () => {
    const ill: readonly (readonly [string, Reply, string, number])[] = [
      ['ill-429', status(429), 'infra/model_rate_limited', TRIES],
      ['ill-500', status(500), 'infra/model_unreachable', TRIES],
      ['ill-html', badGateway(), 'infra/model_unreachable', TRIES],
      ['ill-empty', raw(''), 'infra/model_bad_reply', TRIES],
      ['ill-half', raw('{"choices": [{"mess'), 'infra/model_bad_reply', TRIES],
      ['ill-no-choice', raw('{"choices": []}'), 'infra/model_bad_reply', TRIES],
      ['ill-cut', cutSocket(), 'infra/model_unreachable', TRIES],
      ['ill-headers', headersOnly(), 'infra/model_unreachable', TRIES],
      ['ill-hang', silence(), 'infra/model_unreachable', TRIES],
      ['ill-401', status(401), 'infra/model_auth', 1],
      ['ill-404', status(404), 'infra/model_bad_reply', 1],
      [
        'ill-redirect',
        { kind: 'raw', status: 307, headers: { location: `${fleet.model.url}/elsewhere` }, body: '' },
        'infra/model_bad_reply',
        1,
      ],
    ];
    await Promise.all(
      ill.map(async ([name, reply, code, requests]) => {
        const { verdict, activation, items } = await fleet.run(name, reply, { timeouts: { model_call_s: 1 } });
        expect(verdict, name).toBe(code);
        expect(activation.reward_valid, name).toBe(false);
        expect(items, name).toEqual([]);
        expect(fleet.model.callsOf(name).length, name).toBe(requests);
        expect(activation.body?.counts, name).toMatchObject({ model_calls: 0, model_tries: requests });
        expect(activation.body?.message, name).toContain(fleet.model.url);
      }),
    );
    expect(fleet.workers[0]?.output()).toContain('model call failed');
  },
);

verifies(
  ['model:capture', 'result:class'],
  'a closed port and a name that does not resolve are unreachable within the limit',
  async () => {
    const urls = [`http://127.0.0.1:${await freePort()}/v1`, 'http://no-such-host.invalid/v1'];
    const rollouts = await Promise.all(
      urls.map(async (url, index) => await fleet.run(`closed-${index}`, say('never'), { model: { base_url: url } })),
    );
    for (const [index, { verdict, activation }] of rollouts.entries()) {
      expect(verdict).toBe('infra/model_unreachable');
      expect(activation.body?.message).toContain(urls[index]);
      expect(activation.body?.counts).toMatchObject({ model_calls: 0, model_tries: TRIES });
    }
  },
);

verifies(
  'model:capture',
  'an outage that passes leaves no trace in the answer, and its tries are counted',
  async () => {
    const [rateLimited, mixed] = await Promise.all([
      fleet.run('heals-429', sequence([tooManyRequests(1), say('done')])),
      fleet.run(
        'heals-mixed',
        sequence([
          status(500),
          cutSocket(),
          callTool('terminal', { command: 'echo hi' }),
          badGateway(),
          raw(''),
          say('done'),
        ]),
      ),
    ]);
    expect(rateLimited.verdict).toBe('ok');
    const [first, second] = fleet.model.callsOf('heals-429');
    expect((second?.receivedAt ?? 0) - (first?.answeredAt ?? 0)).toBeGreaterThanOrEqual(990);
    expect(first?.bodyText).toBe(second?.bodyText);
    expect(mixed.verdict).toBe('ok');
    expect(messagesIn(mixed.items)).toEqual(['done']);
    expect(outputsIn(mixed.items)).toHaveLength(1);
    expect(mixed.activation.body?.counts).toMatchObject({ model_calls: 2, model_tries: 6, turns: 2 });
  },
);

verifies(
  'result:class',
  'many sessions at one server that only says 429 make a bounded number of requests, and free their slots',
  async () => {
    const names = Array.from({ length: 8 }, (_, index) => `storm-${index}`);
    const rollouts = await Promise.all(names.map(async (name) => await fleet.run(name, status(429))));
    expect(new Set(rollouts.map(({ verdict }) => verdict))).toEqual(new Set(['infra/model_rate_limited']));
    expect(names.map((name) => fleet.model.callsOf(name).length)).toEqual(names.map(() => TRIES));
    expect(new Set(rollouts.map(({ close }) => close.body?.sandbox))).toEqual(new Set(['removed']));
  },
);

verifies(
  ['model:capture', 'result:class'],
  'a credential is sent as a bearer token, is missed at seed, and is in no result when it is wrong',
  async () => {
    guarded.script('guarded', say('let in'));
    const at = (credential: string) => ({ model: { base_url: guarded.url, name: 'guarded', credential } });
    const [good, bad] = await Promise.all([
      fleet.run('key-good', say('-'), at('GOOD')),
      fleet.run('key-bad', say('-'), at('BAD')),
    ]);
    expect(messagesIn(good.items)).toEqual(['let in']);
    expect(bad.verdict).toBe('infra/model_auth');
    expect(bad.activation).toMatchObject({ fault: 'operator', retryable: false });
    const missing = await fleet.client.seed(fleet.seedOf('key-missing', 'guarded', at('NOWHERE')));
    expect(missing).toMatchObject({ class: 'infra', code: 'credential', fault: 'operator' });
    expect(JSON.stringify([good, bad, missing])).not.toContain('MARKER-');
    expect(fleet.workers[0]?.output()).not.toContain('MARKER-');
    expect(
      guarded.calls
        .map(({ headers }) => headers.authorization ?? '')
        .toSorted((one, other) => one.localeCompare(other)),
    ).toEqual(['Bearer MARKER-KEY-31c0', 'Bearer MARKER-KEY-wrong']);
    await fleet.client.close({ session_id: 'key-missing' });
  },
);
