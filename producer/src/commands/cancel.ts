import type { Cancelled } from '../submission.ts';
import { type CommandSpec, print } from './command.ts';

function sentence({ accepted, isAhead, sessions }: Cancelled, isKnown: boolean, commandId: string | undefined): string {
  if (!accepted) return 'it has ended already, and not as cancelled';
  if (sessions !== undefined) return `cancelled, with the ${sessions} sessions that it had so far`;
  if (isAhead === true) return 'it is not there yet, and will be cancelled when it comes';
  return isKnown || commandId !== undefined ? 'cancelled' : 'the session is not known, and can no longer be seeded';
}

export const cancelCommand: CommandSpec = {
  name: 'cancel',
  summary: 'cancel one command, a session, or every session of a sweep',
  declare: (command) =>
    command
      .argument('[session-id]', 'id of the session')
      .argument('[command-id]', 'only this activation, or "seed"; the session stays open')
      .option('--sweep <id>', 'every session of this sweep, and those that are still to come'),
  async run({ args, connect, isJson, stdout }, values) {
    const [sessionId, commandId] = args;
    const sweepId = values['sweep'] as string | undefined;
    if ((sessionId === undefined) === (sweepId === undefined)) {
      const { FleetError } = await import('@hermes-fleet/shared');
      throw new FleetError('refused/invalid', 'name a session, or a sweep by --sweep');
    }
    await using client = await connect();
    const isKnown = sessionId === undefined || (await client.status(sessionId).catch(() => undefined)) !== undefined;
    const cancelled = await client.cancel(
      sweepId === undefined
        ? { sessionId: sessionId ?? '', ...(commandId === undefined ? {} : { commandId }) }
        : { sweepId },
    );
    await print(stdout, isJson ? JSON.stringify(cancelled) : sentence(cancelled, isKnown, commandId));
    return 0;
  },
};
