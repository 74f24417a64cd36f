import type { ObservationGap } from '@hermes-fleet/shared';
import type { SandboxProbe } from './broker/probe.ts';
import type { InsideHermes } from './hermes/inside.ts';

/** What a seed leaves in the record for the commands after it, on whatever worker they run. */
export interface SessionDescriptor {
  readonly provider: string;
  /** The provider's own id of the sandbox, as observations have it. */
  readonly sandbox_id: string;
  /** The provider's own descriptor of the sandbox. */
  readonly box: Readonly<Record<string, unknown>>;
  readonly probe: SandboxProbe;
  readonly hermes_version: string;
  /** Null: Hermes runs apart. */
  readonly inside: InsideHermes | null;
  readonly gaps: readonly ObservationGap[];
  /** Milliseconds since the epoch. */
  readonly created_at: number;
}

export function parseDescriptor(text: string): SessionDescriptor | undefined {
  return text === '' ? undefined : (JSON.parse(text) as SessionDescriptor);
}
