import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { hermesToolsets, schemaFiles, toolsetsSource } from './generated.ts';
import { ROOT } from './processes.ts';

// Writes every generated file of the repository: the JSON Schemas of `shared/schema`, and the names in `toolsets.ts`.

const toolsets = path.join(ROOT, 'shared/src/toolsets.ts');
writeFileSync(toolsets, toolsetsSource(readFileSync(toolsets, 'utf8'), hermesToolsets()));

const folder = path.join(ROOT, 'shared/schema');
mkdirSync(folder, { recursive: true });
for (const [name, schema] of schemaFiles()) writeFileSync(path.join(folder, name), JSON.stringify(schema, null, 2));
execFileSync(path.join(ROOT, 'node_modules/.bin/oxfmt'), [folder], { stdio: 'inherit' });
