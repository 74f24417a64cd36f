import { once } from 'node:events';
import { request as httpRequest } from 'node:http';
import { expect, test } from 'vitest';
import * as replies from '../setup/model-replies.ts';
import { ModelServer } from '../setup/model-server.ts';

const post = (server: ModelServer, body: unknown, init: RequestInit = {}): Promise<Response> =>
  fetch(`${server.url}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: 'Bearer t' },
    body: JSON.stringify(body),
    ...init,
  });
const ask = { model: 'm', messages: [{ role: 'user', content: 'hi' }] };

test('a scripted model answers whole completions and every request is kept', async () => {
  await using server = await ModelServer.start();
  server.script('m', replies.say('hello'));
  const answer = await (await post(server, ask)).json();
  expect(answer).toMatchObject({
    object: 'chat.completion',
    model: 'm',
    choices: [{ message: { role: 'assistant', content: 'hello' }, finish_reason: 'stop' }],
  });
  expect(server.calls).toHaveLength(1);
  expect(server.calls[0]).toMatchObject({
    method: 'POST',
    path: '/v1/chat/completions',
    body: ask,
    bodyText: JSON.stringify(ask),
    headers: { authorization: 'Bearer t' },
  });
});

test('a stream is refused with 422 and counted', async () => {
  await using server = await ModelServer.start();
  server.script('m', replies.say('hello'));
  expect((await post(server, { ...ask, stream: true })).status).toBe(422);
  expect(server.refusedStreams).toBe(1);
});

test('token ids and log-probs are on the message when they are asked for', async () => {
  await using server = await ModelServer.start({ withTokens: true });
  server.script('m', replies.say('hello'));
  const answer = (await (await post(server, ask)).json()) as {
    choices: { message: Record<string, number[]> }[];
    usage: { prompt_tokens: number };
  };
  const message = answer.choices[0]?.message ?? {};
  expect(message['prompt_token_ids']).toHaveLength(answer.usage.prompt_tokens);
  expect(message['generation_log_probs']).toHaveLength(message['generation_token_ids']?.length ?? -1);
});

test.each([
  ['429 with Retry-After', replies.tooManyRequests(7), 429, 'retry-after', '7'],
  ['502 with a page', replies.badGateway(), 502, 'content-type', 'text/html'],
  ['401', replies.status(401), 401, 'content-type', 'application/json'],
])('a reply may be a status: %s', async (_, reply, status, header, value) => {
  await using server = await ModelServer.start();
  server.script('m', reply);
  const response = await post(server, ask);
  expect(response.status).toBe(status);
  expect(response.headers.get(header)).toBe(value);
});

test('raw bytes arrive as they were given', async () => {
  const body = '{\n  "n": 12345678901234567890,\n  "p": NaN,\n  "s": "\\ud800"\n}';
  await using server = await ModelServer.start();
  server.script('m', replies.raw(body));
  expect(await (await post(server, ask)).text()).toBe(body);
});

test.each([
  ['cut before the first byte', replies.cutSocket()],
  ['ended after the headers', replies.headersOnly()],
])('a connection %s fails at the client and is no abort of its', async (_, reply) => {
  await using server = await ModelServer.start();
  server.script('m', reply);
  await expect(post(server, ask).then((response) => response.text())).rejects.toThrow(/fetch failed|terminated/);
  await expect.poll(() => server.openCalls).toHaveLength(0);
  expect(server.calls[0]?.abortedAt).toBeUndefined();
});

test('the headers arrive before the connection ends', async () => {
  await using server = await ModelServer.start();
  server.script('m', replies.headersOnly());
  const request = httpRequest(`${server.url}/chat/completions`, { method: 'POST' }).end(JSON.stringify(ask));
  const [response] = (await once(request, 'response')) as [{ statusCode: number; destroy: () => void }];
  expect(response.statusCode).toBe(200);
  response.destroy();
});

test('a held reply waits for its release, and a client that goes away is seen', async () => {
  await using server = await ModelServer.start();
  const held = replies.hold(replies.say('at last'));
  server.script('m', held.script);
  const leaver = new AbortController();
  const stays = post(server, ask);
  const leaves = post(server, ask, { signal: leaver.signal }).catch(() => 'gone');
  await expect.poll(() => server.openCalls).toHaveLength(2);
  expect(held.isHolding).toBe(true);
  leaver.abort();
  expect(await leaves).toBe('gone');
  await expect.poll(() => server.openCalls).toHaveLength(1);
  expect(server.calls.filter((call) => call.abortedAt !== undefined)).toHaveLength(1);
  held.release();
  expect((await stays).status).toBe(200);
  await expect.poll(() => server.openCalls).toHaveLength(0);
});

test('a wrong token and an unknown model are said as such', async () => {
  await using server = await ModelServer.start({ token: 's3cret' });
  expect((await post(server, ask)).status).toBe(401);
  const headers = { authorization: 'Bearer s3cret' };
  expect((await post(server, ask, { headers })).status).toBe(404);
});
