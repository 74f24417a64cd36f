/** Every label of a container of ours; they are there from its creation, so that the reaper never has to guess. */
export const LABEL = {
  fleet: 'hermes-fleet.fleet',
  session: 'hermes-fleet.session',
  lease: 'hermes-fleet.lease',
  role: 'hermes-fleet.role',
  /** Seconds since the epoch. */
  expires: 'hermes-fleet.expires',
  /** Who made a volume, and is filling it. */
  maker: 'hermes-fleet.maker',
} as const;

export const ROLE = { sandbox: 'sandbox', runner: 'runner', toolbox: 'toolbox', hermes: 'hermes' } as const;
