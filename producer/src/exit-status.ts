import type { FleetError } from '@hermes-fleet/shared';

/** Exit statuses, by sysexits(3) where it has one. */
export const EXIT = {
  done: 0,
  /** Some rollouts have no result that may be scored. */
  notAll: 1,
  usage: 64,
  unavailable: 69,
  bug: 70,
  full: 75,
  config: 78,
  interrupted: 130,
} as const;

/** Known by its form: the class would bring the whole of `shared` with it. */
export function isFleetError(error: unknown): error is FleetError {
  return error instanceof Error && error.name === 'FleetError' && 'fault' in error;
}

export function exitStatusOf(error: unknown): number {
  if (!isFleetError(error)) return EXIT.bug;
  switch (error.fault) {
    case 'caller':
      return EXIT.usage;
    case 'operator':
      return EXIT.config;
    case 'infrastructure':
      return EXIT.unavailable;
    case 'capacity':
      return EXIT.full;
    case 'bug':
      return EXIT.bug;
    case 'none':
    case 'limit':
    case 'agent':
      return EXIT.notAll;
  }
  return EXIT.bug;
}
