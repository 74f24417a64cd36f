import { readFileSync } from 'node:fs';
import path from 'node:path';
import { HERMES_VERSION } from '@hermes-fleet/worker/hermes/pinned-version';
import { expect } from 'vitest';
import { ROOT } from '../setup/processes.ts';
import { verifies } from '../setup/verifies.ts';

verifies('hermes:one-pin', 'the version that workers look for in a sandbox is the pin of requirements.txt', () => {
  const requirements = readFileSync(path.join(ROOT, 'requirements.txt'), 'utf8');
  expect(/^hermes-agent\[mcp\]==(\S+)$/m.exec(requirements)?.[1]).toBe(HERMES_VERSION);
});
