import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { sessionKey } from '@hermes-fleet/shared';
import { afterAll, beforeAll, expect } from 'vitest';
import { grantOf, type HermesFleet, outputsIn, type SeedMore, startHermesFleet } from '../setup/hermes-fleet.ts';
import { McpTestServer } from '../setup/mcp-server.ts';
import {
  callTool,
  raw,
  type Reply,
  say,
  type Script,
  silence,
  status,
  tooManyRequests,
  turnOf,
} from '../setup/model-replies.ts';
import { ModelServer } from '../setup/model-server.ts';
import { verifies } from '../setup/verifies.ts';

const TRIES = 3;
const BACKOFF_MS = 200;
let fleet: HermesFleet;

beforeAll(async () => {
  fleet = await startHermesFleet({
    env: { FLEET_MODEL_TRIES: String(TRIES), FLEET_MODEL_BACKOFF_MS: String(BACKOFF_MS) },
  });
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

const works = callTool('terminal', { command: 'true' });
const namesOf = (stem: string, count: number): string[] => Array.from({ length: count }, (_, n) => `${stem}-${n}`);

verifies(
  ['result:class', 'model:capture'],
  'many sessions at a server that says when to come back ask no sooner, and a bounded number of times (A20)',
  async () => {
    await using limited = await ModelServer.start();
    const names = namesOf('later', 8);
    for (const name of names) limited.script(name, tooManyRequests(1));
    const rollouts = await Promise.all(
      names.map(async (name) => await fleet.run(name, say('-'), { model: { base_url: limited.url } })),
    );
    expect(new Set(rollouts.map(({ verdict }) => verdict))).toEqual(new Set(['infra/model_rate_limited']));
    for (const [index, name] of names.entries()) {
      const calls = limited.callsOf(name);
      expect(calls, name).toHaveLength(TRIES);
      for (const [n, call] of calls.slice(1).entries())
        expect(call.receivedAt - (calls[n]?.answeredAt ?? Infinity), name).toBeGreaterThanOrEqual(990);
      expect(rollouts[index]?.activation.body?.counts, name).toMatchObject({ model_calls: 0, model_tries: TRIES });
      expect(rollouts[index]?.close.body?.sandbox, name).toBe('removed');
    }
    const lines = (fleet.workers[0]?.output() ?? '').split('\n').filter((line) => line.includes(limited.url));
    expect(lines.filter((line) => line.includes('"model call failed"'))).toHaveLength(names.length * TRIES);
  },
);

verifies(
  ['result:class', 'model:capture'],
  'sessions that are refused at the same time try again at different times, and do not slow those of another server',
  async () => {
    await using limited = await ModelServer.start();
    const names = namesOf('spread', 8);
    for (const name of names) limited.script(name, status(429));
    const storm = Promise.all(
      names.map(async (name) => await fleet.run(name, say('-'), { model: { base_url: limited.url } })),
    );
    const { verdict } = await fleet.run('beside-the-storm', say('done'));
    expect(verdict).toBe('ok');
    expect(new Set((await storm).map((rollout) => rollout.verdict))).toEqual(new Set(['infra/model_rate_limited']));
    const pauses = names.map((name) => {
      const [first, second, third, ...more] = limited.callsOf(name);
      expect(more, name).toEqual([]);
      return [
        (second?.receivedAt ?? 0) - (first?.answeredAt ?? 0),
        (third?.receivedAt ?? 0) - (second?.answeredAt ?? 0),
      ];
    });
    for (const [one = 0, two = 0] of pauses) {
      expect(one).toBeGreaterThanOrEqual(BACKOFF_MS / 2 - 5);
      expect(two).toBeGreaterThanOrEqual(BACKOFF_MS - 5);
    }
    const [shortest = 0, ...others] = pauses.map(([one = 0]) => one).toSorted((one, two) => one - two);
    expect((others.at(-1) ?? 0) - shortest).toBeGreaterThan(BACKOFF_MS / 10);
  },
);

verifies(
  ['result:class', 'model:capture'],
  'time that runs out while the server is waited for is the fault of the server, and one that asks for a day is not waited for',
  async () => {
    const after =
      (last: Reply): Script =>
      (request) =>
        turnOf(request) < 2 ? works : last;
    await using limited = await ModelServer.start();
    limited.script('waited-for', after(tooManyRequests(60)));
    limited.script('a-day', after(tooManyRequests(86_400)));
    const [waited, day] = await Promise.all(
      ['waited-for', 'a-day'].map(
        async (name) =>
          await fleet.run(name, say('-'), { model: { base_url: limited.url }, timeouts: { activation_s: 10 } }),
      ),
    );
    for (const rollout of [waited, day]) {
      expect(rollout?.verdict).toBe('infra/model_rate_limited');
      expect(rollout?.activation).toMatchObject({ retryable: true, reward_valid: false });
      expect(rollout?.activation.body?.counts).toMatchObject({ model_calls: 2, model_tries: 3, turns: 2 });
      expect(outputsIn(rollout?.items ?? [])).toHaveLength(2);
    }
    expect(day?.activation.body?.timings_ms['total']).toBeLessThan(9_000);
  },
);

verifies(
  ['result:class', 'model:capture'],
  'the beginning of an error body is kept, and a body that does not go on is given up in time (A21)',
  async () => {
    const page: Reply = {
      ...(raw(`<html>out of order ${'x'.repeat(100_000)}</html>`) as Extract<Reply, { kind: 'raw' }>),
      status: 502,
    };
    const kept = await fleet.run('long-body', page);
    expect(kept.verdict).toBe('infra/model_unreachable');
    expect(kept.activation.body?.message).toContain('502: <html>out of order xxx');
    expect(kept.activation.body?.message?.length).toBeLessThan(3_000);

    const stuck = createServer((_, response) => {
      response.writeHead(200, { 'content-type': 'application/json' }).write('{"choices": [');
    });
    stuck.listen(0, '127.0.0.1');
    await once(stuck, 'listening');
    const url = `http://127.0.0.1:${(stuck.address() as AddressInfo).port}/v1`;
    try {
      const { verdict, activation } = await fleet.run('stuck-body', say('-'), {
        model: { base_url: url },
        timeouts: { model_call_s: 1 },
      });
      expect(verdict).toBe('infra/model_unreachable');
      expect(activation.body?.message).toBe(`${url}/chat/completions did not answer within 1 s`);
      expect(activation.body?.counts.model_tries).toBe(TRIES);
    } finally {
      stuck.closeAllConnections();
      stuck.close();
    }
  },
);

interface Ending {
  readonly script: Script | Reply;
  readonly more?: SeedMore;
  /** What is done to it once the model has been asked. */
  readonly end?: (sessionId: string) => unknown;
  readonly is: string;
  readonly fault: string;
  readonly calls: number;
}

const message = (fields: object, finishReason = 'stop'): Reply => ({
  kind: 'completion',
  message: { role: 'assistant', ...fields },
  finishReason,
});
const removeBox = (sessionId: string): void => {
  const filter = `label=hermes-fleet.session=${sessionKey(sessionId)}`;
  const [id = ''] = execFileSync('docker', ['ps', '-q', '--filter', filter], { encoding: 'utf8' }).split('\n');
  execFileSync('docker', ['rm', '-f', id]);
};
verifies(
  'result:class',
  'each way to end has its class, code and fault, says whether to try again and to score, and is never ok without a call (A22)',
  async () => {
    await using down = await McpTestServer.start({ mode: 'refuse' });
    await using lists = await McpTestServer.start({ mode: 'unauthorized' });
    const endings: Readonly<Record<string, Ending>> = {
      right: { script: say('42'), is: 'ok', fault: 'none', calls: 1 },
      wrong: { script: say('I do not know'), is: 'ok', fault: 'none', calls: 1 },
      turns: {
        script: works,
        more: { hermes: { max_turns: 1 } },
        is: 'incomplete/max_turns',
        fault: 'limit',
        calls: 3,
      },
      calls: {
        script: works,
        more: { budgets: { max_model_calls: 2 } },
        is: 'incomplete/max_model_calls',
        fault: 'limit',
        calls: 2,
      },
      nothing: { script: message({ content: '' }), is: 'failed/no_answer', fault: 'agent', calls: 4 },
      filtered: {
        script: message({ content: 'half' }, 'content_filter'),
        is: 'failed/content_filter',
        fault: 'agent',
        calls: 1,
      },
      full: {
        script: status(400, {}, 'the maximum context length is exceeded'),
        is: 'failed/context_exceeded',
        fault: 'agent',
        calls: 0,
      },
      broken: { script: status(502), is: 'infra/model_unreachable', fault: 'infrastructure', calls: 0 },
      late: {
        script: (request) => (turnOf(request) < 1 ? works : status(502)),
        is: 'infra/model_unreachable',
        fault: 'infrastructure',
        calls: 1,
      },
      limited: { script: status(429), is: 'infra/model_rate_limited', fault: 'infrastructure', calls: 0 },
      locked: { script: status(403), is: 'infra/model_auth', fault: 'operator', calls: 0 },
      'mcp-down': {
        script: say('never'),
        more: { tool_accesses: [grantOf(down, 'down')] },
        is: 'infra/mcp_unreachable',
        fault: 'infrastructure',
        calls: 0,
      },
      'mcp-bad': {
        script: say('never'),
        more: { tool_accesses: [grantOf(lists, 'locked')] },
        is: 'infra/mcp_bad',
        fault: 'infrastructure',
        calls: 0,
      },
      'no-image': {
        script: say('never'),
        more: { sandbox: { image: 'hermes-fleet-test:no-such' } },
        is: 'infra/sandbox_image',
        fault: 'operator',
        calls: 0,
      },
      'no-box': {
        script: (request) => {
          if (turnOf(request) === 1) removeBox('no-box');
          return works;
        },
        is: 'infra/sandbox_lost',
        fault: 'infrastructure',
        calls: 2,
      },
      cancelled: {
        script: silence(),
        end: async (sessionId) => await fleet.client.cancel({ sessionId, commandId: 'a' }),
        is: 'cancelled/by_caller',
        fault: 'caller',
        calls: 0,
      },
    };
    await Promise.all(
      Object.entries(endings).map(async ([name, { script, more, end, is, fault, calls }]) => {
        await fleet.begin(name, script, more);
        if (end !== undefined) {
          await expect.poll(() => fleet.model.callsOf(name).length, { timeout: 60_000, interval: 20 }).toBe(1);
          await end(name);
        }
        const { activation, verdict, close } = await fleet.settle(name);
        expect(verdict, name).toBe(is);
        const isScored = ['ok', 'incomplete', 'failed'].includes(activation.class);
        expect(activation, name).toMatchObject({
          fault,
          retryable: fault === 'infrastructure',
          reward_valid: isScored,
        });
        expect(activation.body?.counts.model_calls ?? 0, name).toBe(calls);
        const { class: sessionClass, code } = activation;
        expect(close.body?.session, name).toEqual({ class: sessionClass, code });
        // What a result is worth is for others to say.
        expect(JSON.stringify(activation).match(/"\w*reward\w*"/g), name).toEqual(['"reward_valid"']);
      }),
    );
  },
);
