import { randomUUID } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { SeedInput } from '@hermes-fleet/shared';

/** A stub sandbox that is ready once `go` was called. */
export function heldSandbox(): { readonly sandbox: SeedInput['sandbox']; go(): Promise<void> } {
  const file = path.join(tmpdir(), `fleet-go-${randomUUID()}`);
  return {
    sandbox: { provider: 'stub', image: `until:${file}` },
    go: async () => await writeFile(file, ''),
  };
}
