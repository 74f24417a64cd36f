import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { schemaFiles } from '../setup/generated.ts';
import { schemaFault } from '../setup/json-schema.ts';
import { ROOT } from '../setup/processes.ts';

const schemas = schemaFiles();

test.each([...schemas])(
  'shared/schema/%s is as the zod schemas are (test/setup/generate.ts writes it)',
  (name, schema) => {
    const file = path.join(ROOT, 'shared/schema', name);
    expect(existsSync(file)).toBe(true);
    expect(JSON.parse(readFileSync(file, 'utf8'))).toEqual(schema);
  },
);

const seed = { session_id: 's', sandbox: { image: 'i' }, model: { base_url: 'http://m/v1', name: 'm' } };

test('the schemas take commands as a caller writes them, without defaults', () => {
  expect(schemaFault(schemas.get('seed.json') ?? {}, seed)).toBeUndefined();
  expect(schemaFault(schemas.get('close.json') ?? {}, { session_id: 's' })).toBeUndefined();
  const activate = { session_id: 's', activation_id: 'a', request: { input: [{ role: 'user', content: 'hello' }] } };
  expect(schemaFault(schemas.get('activate.json') ?? {}, activate)).toBeUndefined();
});

test('the schemas refuse unknown fields, wrong bounds and a sandbox that is both owned and borrowed', () => {
  const fault = (change: object): string | undefined =>
    schemaFault(schemas.get('seed.json') ?? {}, { ...seed, ...change });
  expect(fault({ bogus: 1 })).toBeDefined();
  expect(fault({ timeouts: { tool_s: 0 } })).toBeDefined();
  expect(fault({ sandbox: { image: 'i', access: {} } })).toBeDefined();
});

test('the schemas of results let a newer fleet add fields', () => {
  const stored = { class: 'ok', code: '', fence: '', blob: '', body: null, new_in_1_1: true };
  expect(schemaFault(schemas.get('stored-result.json') ?? {}, stored)).toBeUndefined();
});
