import { readFileSync } from 'node:fs';
import path from 'node:path';
import { HERMES_TOOLSETS } from '@hermes-fleet/shared';
import { expect, test } from 'vitest';
import { hermesToolsets, toolsetsSource } from '../setup/generated.ts';
import { ROOT } from '../setup/processes.ts';

test('the list of toolsets is that of the pinned Hermes (test/setup/generate.ts writes it)', () => {
  const names = hermesToolsets();
  expect(HERMES_TOOLSETS).toEqual(names);
  const source = readFileSync(path.join(ROOT, 'shared/src/toolsets.ts'), 'utf8');
  expect(toolsetsSource(source, names)).toBe(source);
});
