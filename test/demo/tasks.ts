import type { SeedInput } from '@hermes-fleet/shared';
import { PROGRAM } from './scripts.ts';

export interface DemoTask {
  readonly name: string;
  readonly prompt: string;
  readonly seed: Omit<SeedInput, 'session_id'>;
}

const CITIES = ['Paris', 'Tokyo', 'Seattle', 'Nairobi', 'Toronto'];
const CODING = [
  ['primes', 'Write program.py that prints the sum of all primes below 100, run it, and mend it until it works.'],
  [
    'words',
    'Write program.py that prints how often "the" is in "the cat and the hat and the bat", run it, and mend it until it works.',
  ],
  ['roman', 'Write program.py that reads the Roman number MCMXCIV, run it, and mend it until it works.'],
] as const;

export interface DemoEnvironment {
  readonly provider: 'docker' | 'local';
  readonly image: string;
  readonly modelUrl: string;
  readonly mcp: { readonly url: string; readonly authorization: string };
}

/** Five tasks that cannot be answered without the granted tool, and three that write, run and mend a program. */
export function demoTasks(environment: DemoEnvironment): DemoTask[] {
  const { provider, image, modelUrl, mcp } = environment;
  const sandbox = { provider, image };
  const grant = {
    kind: 'mcp' as const,
    name: 'weather',
    required: true,
    connection: { transport: 'streamable_http' as const, url: mcp.url, headers: { authorization: mcp.authorization } },
  };
  return [
    ...CITIES.map((city) => ({
      name: `weather-${city.toLowerCase()}`,
      prompt: `Use the get_weather MCP tool for ${city}, then answer with exactly the weather sentence returned by the tool.`,
      seed: { sandbox, model: { base_url: modelUrl, name: 'weather' }, tool_accesses: [grant] },
    })),
    ...CODING.map(([name, prompt]) => ({
      name: `coding-${name}`,
      prompt,
      seed: {
        sandbox,
        model: { base_url: modelUrl, name: `coder-${name}` },
        collect: { commands: [{ name: 'run', argv: ['python3', PROGRAM] }], files: [PROGRAM] },
      },
    })),
  ];
}
