import type { SeedInput } from '@hermes-fleet/shared';

/** The least that a seed says; `change` replaces whole fields. */
export function seedBody(change: Readonly<Record<string, unknown>> = {}): SeedInput {
  return {
    session_id: 's',
    sandbox: { image: 'debian:12' },
    model: { base_url: 'http://model:8000/v1', name: 'm' },
    ...change,
  };
}
