import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import {
  ActivationBody,
  Activate,
  Close,
  CloseBody,
  ObservationBundle,
  Seed,
  SeedBody,
  StoredResult,
} from '@hermes-fleet/shared';
import { z } from 'zod';
import { ROOT } from './processes.ts';

const HERMES_SECONDS = 60;

/** Commands as a caller writes them; results as the fleet writes them. */
const DOCUMENTS: Readonly<Record<string, readonly [schema: z.ZodType, io: 'input' | 'output', title: string]>> = {
  seed: [Seed, 'input', 'Seed'],
  activate: [Activate, 'input', 'Activate'],
  close: [Close, 'input', 'Close'],
  'seed-result': [SeedBody, 'output', 'SeedResult'],
  'activation-result': [ActivationBody, 'output', 'ActivationResult'],
  'close-result': [CloseBody, 'output', 'CloseResult'],
  'stored-result': [StoredResult, 'output', 'StoredResult'],
  'observation-bundle': [ObservationBundle, 'output', 'ObservationBundle'],
};

/** JSON Schemas of the wire documents, by file name: for users of Python, who have no zod. Refinements are not in them. */
export function schemaFiles(): ReadonlyMap<string, object> {
  return new Map(
    Object.entries(DOCUMENTS).map(([name, [schema, io, title]]) => {
      const { $schema, ...rest } = z.toJSONSchema(schema, {
        io,
        unrepresentable: 'any',
        override: ({ zodSchema, jsonSchema }) => {
          // A field that must be absent, and formats that no validator knows beside its own pattern.
          if (zodSchema._zod.def.type === 'undefined') jsonSchema.not = {};
          if (jsonSchema.format === 'starts_with' || jsonSchema.format === 'base64') delete jsonSchema.format;
          // Only what is strict here is strict there: results gain fields within a major.
          const { def } = zodSchema._zod;
          if (def.type === 'object' && !('catchall' in def && def.catchall !== undefined))
            delete jsonSchema.additionalProperties;
        },
      });
      return [`${name}.json`, { $schema, title, ...rest }];
    }),
  );
}

/** Names of the toolsets of the Hermes in .venv, in order. */
export function hermesToolsets(): string[] {
  const home = mkdtempSync(path.join(os.tmpdir(), 'hermes-toolsets-'));
  try {
    const text = execFileSync(
      path.join(ROOT, '.venv/bin/python'),
      ['-c', 'import json, toolsets; print(json.dumps(sorted(toolsets.TOOLSETS)))'],
      {
        encoding: 'utf8',
        timeout: HERMES_SECONDS * 1000,
        env: { PATH: process.env['PATH'], HOME: home, HERMES_HOME: home },
      },
    );
    return JSON.parse(text) as string[];
  } finally {
    rmSync(home, { recursive: true, force: true });
  }
}

/** `shared/src/toolsets.ts` with other names in it; all else stays as it is. */
export function toolsetsSource(source: string, names: readonly string[]): string {
  const list = names.map((name) => `  '${name}',\n`).join('');
  return source.replace(/(HERMES_TOOLSETS: readonly string\[\] = \[\n)[^\]]*(\];)/, `$1${list}$2`);
}
