import { readFileSync } from 'node:fs';
import path from 'node:path';
import { WorkerEnvironment } from '@hermes-fleet/worker/config';
import { expect, test } from 'vitest';
import { ROOT } from '../setup/processes.ts';

const readme = readFileSync(path.join(ROOT, 'README.md'), 'utf8');

test('the settings table of the README has exactly the settings of the schema, with their meaning', () => {
  const rows = new Map(
    [...readme.matchAll(/^\| `(FLEET_\w+)` \| .* \| (.*) \|$/gm)].map(([, name = '', meaning = '']) => [name, meaning]),
  );
  const schema = new Map(
    Object.entries(WorkerEnvironment.shape).map(([name, setting]) => [name, setting.meta()?.description ?? '']),
  );
  expect(rows).toEqual(schema);
});

test('the README is 150 lines at most', () => {
  expect(readme.split('\n').length).toBeLessThanOrEqual(151);
});
