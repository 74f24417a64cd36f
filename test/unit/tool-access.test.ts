import { FleetError, hermesServerName, parseSeed, refusalOf } from '@hermes-fleet/shared';
import { expect, test } from 'vitest';
import { seedBody } from '../setup/seed.ts';
import { verifies } from '../setup/verifies.ts';

const url = 'http://tools:1/mcp';
const grant = (name: string, change: object = {}) => ({
  kind: 'mcp',
  name,
  required: true,
  connection: { transport: 'streamable_http', url },
  ...change,
});
const stdio = { connection: { transport: 'stdio', command: 'server' } };

function outcome(...accesses: object[]): string {
  try {
    parseSeed(seedBody({ tool_accesses: accesses }));
  } catch (error) {
    if (error instanceof FleetError) return `${error.code}: ${error.message}`;
    throw error;
  }
  return 'accepted';
}

verifies('grant:refuse', 'a grant with the name of a Hermes toolset is refused, one with a similar name is not', () => {
  for (const name of ['web', 'terminal', 'file', 'memory', 'kanban', 'delegation', 'hermes-cli', 'hermes-new'])
    expect(outcome(grant(name))).toBe(
      `refused/invalid: seed is not valid: tool_accesses.0: grant "${name}" has the name of a Hermes toolset`,
    );
  for (const name of ['image-gen', 'image.gen', 'x-search']) expect(outcome(grant(name))).toContain('Hermes toolset');
  for (const name of ['WEB', 'web-', 'webs', 'hermes', 'weather', 'a__b', '0'])
    expect(outcome(grant(name))).toBe('accepted');
  expect(outcome(grant('ok'), grant('web', { required: false }))).toContain('tool_accesses.1: grant "web"');
});

verifies('grant:refuse', 'names that become one after cleaning are refused together', () => {
  expect(outcome(grant('my-srv'), grant('my.srv'))).toBe(
    'refused/invalid: seed is not valid: tool_accesses.1: grant "my.srv" and grant "my-srv" have one name for Hermes (my_srv)',
  );
  expect(outcome(grant('a'), grant('a', { required: false }))).toContain('have one name for Hermes');
  expect(outcome(grant('my_srv'), grant('my-srv2'))).toBe('accepted');
  expect(hermesServerName('my-srv.2')).toBe('my_srv_2');
});

verifies(
  'grant:refuse',
  'another kind of grant is refused when it is required, and left to a gap when it is not',
  () => {
    const http = { kind: 'direct_http', name: 'h', required: true, base_url: 'http://h' };
    expect(outcome(http)).toBe(
      'refused/grant_unsupported: seed is not valid: tool_accesses.0: grant "h" is required, and its kind (direct_http) is not supported',
    );
    expect(outcome(grant('s', stdio))).toContain(
      'grant "s" is required, and its kind (mcp over stdio) is not supported',
    );
    expect(outcome({ ...http, required: false }, grant('s', { ...stdio, required: false }))).toBe('accepted');
  },
);

test('an optional grant that cannot be had does not stand in the way of one that can', () => {
  const seed = parseSeed(seedBody({ tool_accesses: [grant('s', { ...stdio, required: false }), grant('s')] }));
  expect(refusalOf(seed.tool_accesses)).toBeUndefined();
});

test.each([
  [{ kind: 'grpc', name: 'x' }, 'tool_accesses.0.kind: expected one of "mcp", "direct_http"'],
  [
    grant('x', { connection: { transport: 'sse', url } }),
    'tool_accesses.0.connection.transport: expected one of "streamable_http", "stdio"',
  ],
  [grant('-x'), 'tool_accesses.0.name: a grant name is letters'],
  [grant(''), 'tool_accesses.0.name: a grant name is letters'],
  [grant('x', { required: undefined }), 'tool_accesses.0.required: expected boolean'],
  [
    grant('x', { connection: { transport: 'streamable_http', url: 'file:///x' } }),
    'connection.url: must be an http or https URL',
  ],
  [
    grant('x', { connection: { transport: 'streamable_http', url, headers: { 'a b': '' } } }),
    'headers.a b: must be a header name',
  ],
  [
    grant('x', { connection: { transport: 'streamable_http', url, headers: { a: 'b\r\nc: d' } } }),
    'headers.a: must be one line of Latin-1 text',
  ],
  [grant('x', { scope: 1 }), 'tool_accesses.0.scope: is not a known field'],
])('%j is refused, naming the field', (access, sentence) => {
  expect(outcome(access)).toContain(sentence);
});

test('a refusal does not repeat a header, which may be a key', () => {
  const headers = { authorization: 'Bearer KEY-AAA\n' };
  expect(outcome(grant('x', { connection: { transport: 'streamable_http', url, headers } }))).not.toContain('KEY-AAA');
});
