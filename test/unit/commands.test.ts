import { readFileSync } from 'node:fs';
import path from 'node:path';
import { FleetError, parseActivate, parseClose, parseSeed, sessionKey } from '@hermes-fleet/shared';
import { expect, test } from 'vitest';
import { seedBody } from '../setup/seed.ts';

const MIB = 1024 * 1024;

/** Code and sentence of a refusal; fails when there is none. */
function refusal(parse: () => unknown): string {
  try {
    parse();
  } catch (error) {
    if (error instanceof FleetError) return `${error.code}: ${error.message}`;
    throw error;
  }
  throw new Error('accepted');
}
const seedRefusal = (change: Readonly<Record<string, unknown>>): string => refusal(() => parseSeed(seedBody(change)));
const sandbox = (change: object) => ({ sandbox: { image: 'i', ...change } });
const model = (change: object) => ({ model: { base_url: 'http://m/v1', name: 'm', ...change } });

test('a seed that says the least gets every default', () => {
  expect(parseSeed(seedBody())).toEqual({
    session_id: 's',
    reply_to: 'default',
    sandbox: {
      provider: 'docker',
      image: 'debian:12',
      workdir: '/workspace',
      env: {},
      network: 'none',
      limits: { cpus: 2, memory_mib: 4096, pids: 512 },
      files: [],
    },
    hermes: {
      placement: 'apart',
      toolsets: ['terminal', 'file'],
      max_turns: 90,
      context_length: 131_072,
      compaction: false,
      delegation: { max_turns: 50 },
    },
    model: { base_url: 'http://model:8000/v1', name: 'm', max_tokens: 8192, sampling: {} },
    tool_accesses: [],
    budgets: {},
    timeouts: {
      seed_s: 300,
      connect_s: 30,
      tool_s: 180,
      model_call_s: 1800,
      activation_s: 21_600,
      close_s: 60,
      session_ttl_s: 86_400,
    },
  });
});

test('two seeds share no default that one of them could change', () => {
  const [one, other] = [parseSeed(seedBody()), parseSeed(seedBody())];
  one.hermes.toolsets.push('web');
  one.timeouts.tool_s = 1;
  one.tool_accesses.length = 0;
  expect(other).toEqual(parseSeed(seedBody()));
});

test('a session id is any text of 1 to 512 bytes', () => {
  const file = path.join(import.meta.dirname, '../data/session_ids.json');
  const ids = (JSON.parse(readFileSync(file, 'utf8')) as { session_id: string }[]).map((row) => row.session_id);
  for (const id of [...ids, 'é'.repeat(256), 'x'.repeat(512), '\0'])
    expect(parseSeed(seedBody({ session_id: id })).session_id).toBe(id);
  expect(new Set(ids.map(sessionKey)).size).toBe(ids.length);
  expect(seedRefusal({ session_id: '' })).toBe('refused/invalid: seed is not valid: session_id: must not be empty');
  expect(seedRefusal({ session_id: `${'é'.repeat(256)}x` })).toContain('session_id: must be 512 bytes at most');
  expect(seedRefusal({ session_id: 'a\uD800' })).toContain('session_id: must be well-formed Unicode');
  expect(seedRefusal({ session_id: 7 })).toContain('session_id: expected string, received number');
});

test.each([
  ['reply_to', '', 'reply_to: a results stream is named by 1 to 128 of'],
  ['reply_to', 'x'.repeat(129), 'reply_to: a results stream is named by 1 to 128 of'],
  ['reply_to', 'a:b', 'reply_to: a results stream is named by 1 to 128 of'],
  ['identity', { attempt: -1 }, 'identity.attempt: expected number to be >=0'],
  ['identity', { attempt: 1.5 }, 'identity.attempt: expected int'],
  ['identity', { sweep_id: 'a b' }, 'identity.sweep_id: a sweep id is 1 to 128 of'],
  ['tool_accesses', {}, 'tool_accesses: expected array, received object'],
])('%s of %j is refused', (field, value, sentence) => {
  expect(seedRefusal({ [field]: value })).toContain(`refused/invalid: seed is not valid: ${sentence}`);
});

test('an activation id is 1 to 128 letters, and is none of the words for other commands', () => {
  const activate = (id: unknown) => () =>
    parseActivate({ session_id: 's', activation_id: id, request: { input: 'x' } });
  for (const id of ['a', 'x'.repeat(128), '..', 'Seed', 'seed2', 'Close', 'a.close'])
    expect(activate(id)).not.toThrow();
  for (const id of ['', 'x'.repeat(129), 'a b', 'a:b', 'ä', 'a\n'])
    expect(refusal(activate(id))).toContain('activation_id: an activation id is 1 to 128 of A-Z');
  for (const id of ['seed', 'close', 'close.2', 'closed'])
    expect(refusal(activate(id))).toContain('activation_id: must not be "seed" and not begin with "close"');
});

const TIMEOUTS = ['seed_s', 'connect_s', 'tool_s', 'model_call_s', 'activation_s', 'close_s', 'session_ttl_s'];

test.each(TIMEOUTS)('timeouts.%s is any finite positive number', (name) => {
  const of = (value: unknown) => ({ timeouts: { [name]: value } });
  for (const value of [0.001, 1, 30 * 86_400, 1e9])
    expect(parseSeed(seedBody(of(value))).timeouts).toMatchObject({ [name]: value });
  for (const value of [0, -1]) expect(seedRefusal(of(value))).toContain(`timeouts.${name}: expected number to be >0`);
  for (const value of [Number.NaN, Infinity, '60', null, true])
    expect(seedRefusal(of(value))).toContain(`timeouts.${name}: must be a number of seconds`);
});

test('budgets are whole numbers from 1, and idle time is seconds', () => {
  const given = {
    max_model_calls: 1,
    max_input_tokens: 1,
    max_output_tokens: 1,
    max_total_tokens: 1,
    idle_time_s: 0.5,
  };
  expect(parseSeed(seedBody({ budgets: given })).budgets).toEqual(given);
  expect(seedRefusal({ budgets: { max_model_calls: 0 } })).toContain(
    'budgets.max_model_calls: expected number to be >=1',
  );
  expect(seedRefusal({ budgets: { max_total_tokens: 1.5 } })).toContain('budgets.max_total_tokens: expected int');
  expect(seedRefusal({ budgets: { idle_time_s: 0 } })).toContain('budgets.idle_time_s: expected number to be >0');
});

test('limits have bounds, and each that is left out its default', () => {
  expect(parseSeed(seedBody(sandbox({ limits: { cpus: 0.5 } }))).sandbox).toMatchObject({
    limits: { cpus: 0.5, memory_mib: 4096, pids: 512 },
  });
  expect(seedRefusal(sandbox({ limits: { cpus: 0 } }))).toContain('sandbox.limits.cpus: expected number to be >0');
  expect(seedRefusal(sandbox({ limits: { cpus: '2' } }))).toContain('sandbox.limits.cpus: must be a number of cpus');
  expect(seedRefusal(sandbox({ limits: { memory_mib: 15 } }))).toContain(
    'sandbox.limits.memory_mib: expected number to be >=16',
  );
  expect(seedRefusal(sandbox({ limits: { pids: 5e6 } }))).toContain(
    'sandbox.limits.pids: expected number to be <=4194304',
  );
});

test('files hold 1 MiB together at most, to the byte, as text or as base64', () => {
  const files = (...list: object[]) => sandbox({ files: list });
  const base64 = Buffer.alloc(MIB - 1, 7).toString('base64');
  expect(() => parseSeed(seedBody(files({ path: 'a', base64 }, { path: 'b', text: 'x' })))).not.toThrow();
  expect(() => parseSeed(seedBody(files({ path: 'a', text: 'é'.repeat(MIB / 2) })))).not.toThrow();
  const sentence = `sandbox.files: files are ${MIB} bytes together at most`;
  expect(seedRefusal(files({ path: 'a', base64 }, { path: 'b', text: 'é' }))).toContain(sentence);
  expect(seedRefusal(files({ path: 'a', text: `${'é'.repeat(MIB / 2)}x` }))).toContain(sentence);
  expect(seedRefusal(files({ path: 'a' }))).toContain('sandbox.files.0: give either text or base64');
  expect(seedRefusal(files({ path: 'a', text: '', base64: '' }))).toContain(
    'sandbox.files.0: give either text or base64',
  );
  expect(seedRefusal(files({ path: 'a', base64: '?' }))).toContain('sandbox.files.0.base64: invalid base64');
});

test.each([
  [sandbox({ env: { 'A-B': 'x' } }), 'sandbox.env.A-B: must be a variable name'],
  [sandbox({ env: { '1A': 'x' } }), 'sandbox.env.1A: must be a variable name'],
  [sandbox({ env: { A: 1 } }), 'sandbox.env.A: expected string, received number'],
  [sandbox({ env: { A: 'x\0y' } }), 'sandbox.env.A: must not hold a NUL character'],
  [sandbox({ workdir: 'work' }), 'sandbox.workdir: must be an absolute path'],
  [sandbox({ workdir: '/a\0' }), 'sandbox.workdir: must not hold a NUL character'],
  [sandbox({ network: 'host' }), 'sandbox.network: expected one of "none"|"open"'],
  [sandbox({ user: 'a b' }), 'sandbox.user: must be a user, or user:group'],
  [sandbox({ provider: '../x' }), 'sandbox.provider: a provider is named by'],
  [{ sandbox: {} }, 'sandbox.image: expected string, received undefined'],
  [{ sandbox: 'debian' }, 'sandbox: expected object'],
  [{ sandbox: { image: 5, workdir: 'x', bogus: 1 } }, 'sandbox.image: expected string, received number'],
  [{ hermes: { max_turns: 0 } }, 'hermes.max_turns: expected number to be >=1'],
  [{ hermes: { context_length: 63_999 } }, 'hermes.context_length: expected number to be >=64000'],
  [{ hermes: { placement: 'outside' } }, 'hermes.placement: expected one of "apart"|"inside"'],
  [model({ base_url: 'ftp://m' }), 'model.base_url: must be an http or https URL'],
  [model({ base_url: 'http://user:key@m/v1' }), 'model.base_url: must be a plain prefix, without user, password'],
  [model({ base_url: 'http://m/v1?key=x' }), 'model.base_url: must be a plain prefix'],
  [model({ credential: 'a-b' }), 'model.credential: a credential name is 1 to 64 of'],
  [model({ max_tokens: 0 }), 'model.max_tokens: expected number to be >=1'],
  [model({ sampling: { temperature: -1 } }), 'model.sampling.temperature: expected number to be >=0'],
  [model({ sampling: { top_p: 1.1 } }), 'model.sampling.top_p: expected number to be <=1'],
  [{ collect: { max_bytes: 0 } }, 'collect.max_bytes: expected number to be >=1'],
  [{ collect: { commands: [{ name: 'a', argv: [] }] } }, 'collect.commands.0.argv: expected array to have >=1 items'],
])('%j is refused, naming the field and its bound', (change, sentence) => {
  const text = seedRefusal(change);
  expect(text).toContain(`refused/invalid: seed is not valid: ${sentence}`);
  expect(text).not.toContain('Invalid input');
});

test.each([
  [{ bogus: 1 }, 'bogus'],
  [sandbox({ binds: [] }), 'sandbox.binds'],
  [sandbox({ limits: { gpus: 1 } }), 'sandbox.limits.gpus'],
  [sandbox({ files: [{ path: 'a', text: '', mode: 7 }] }), 'sandbox.files.0.mode'],
  [{ hermes: { delegation: { depth: 1 } } }, 'hermes.delegation.depth'],
  [model({ api_key: 'k' }), 'model.api_key'],
  [model({ sampling: { top_k: 1 } }), 'model.sampling.top_k'],
  [{ timeouts: { run_s: 1 } }, 'timeouts.run_s'],
])('an unknown field is refused by its path: %j', (change, where) => {
  expect(seedRefusal(change)).toContain(`: ${where}: is not a known field`);
});

test('a sandbox to borrow is named by its provider, a descriptor and a workdir, and by nothing of an owned one', () => {
  const borrow = (descriptor: object, more: object = {}): Readonly<Record<string, unknown>> => ({
    sandbox: { access: { connection: { kind: 'direct', provider: 'docker', descriptor }, workdir: '/w' }, ...more },
  });
  const gym = { sandbox_id: 'nemo-gym-1', workdir: '/w', ports: [8080] };
  expect(parseSeed(seedBody(borrow(gym))).sandbox).toEqual(borrow(gym)['sandbox']);
  expect(seedRefusal({ sandbox: { access: {} } })).toContain('sandbox.access.connection: expected object');
  expect(seedRefusal(borrow(gym, { image: 'i' }))).toContain('sandbox.image: is not a known field');
  expect(seedRefusal(borrow({ ...gym, engine: 'a:b' }))).toContain(
    'sandbox.access.connection.descriptor.engine: must be the id of an engine',
  );
});

test('a toolset that Hermes does not have, and two collected commands of one name, are refused', () => {
  expect(seedRefusal({ hermes: { toolsets: ['terminl'] } })).toContain('"terminl" is no toolset of Hermes (there are ');
  const command = { name: 'diff', argv: ['git', 'diff'] };
  expect(seedRefusal({ collect: { commands: [command, command] } })).toContain('two commands have one name');
  expect(seedRefusal({ collect: { commands: [{ ...command, name: '__proto__' }] } })).toContain(
    'a name is 1 to 128 of',
  );
});

test('a body that is nested deeper than the stack is refused in a sentence', () => {
  let deep: unknown = 1;
  for (let depth = 0; depth < 50_000; depth++) deep = [deep];
  expect(seedRefusal(model({ sampling: { extra_body: { deep } } }))).toBe(
    'refused/invalid: seed is not valid: it is nested too deeply',
  );
});

test('a trailing slash of the base URL is no part of it', () => {
  expect(parseSeed(seedBody(model({ base_url: 'https://m:1/a/v1//' }))).model.base_url).toBe('https://m:1/a/v1');
});

test('a close is for now, unless it says idle', () => {
  expect(parseClose({ session_id: 's' })).toEqual({ session_id: 's', when: 'now' });
  expect(refusal(() => parseClose({ session_id: 's', when: 'later' }))).toBe(
    'refused/invalid: close is not valid: when: expected one of "now"|"idle"',
  );
});

test('a body that is no object is refused as such, and all faults are told at once', () => {
  for (const body of [undefined, null, 7, 'x', []])
    expect(refusal(() => parseSeed(body))).toContain('the body: expected object');
  expect(seedRefusal({ reply_to: '', timeouts: { tool_s: 0 } })).toMatch(/reply_to: .*; timeouts\.tool_s: /);
});
