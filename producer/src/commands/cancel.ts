import { type CommandSpec, print } from './command.ts';

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
    const { accepted } = await client.cancel(
      sweepId === undefined
        ? { sessionId: sessionId ?? '', ...(commandId === undefined ? {} : { commandId }) }
        : { sweepId },
    );
    const text = accepted ? 'cancelled' : 'it has ended already, and not as cancelled';
    await print(stdout, isJson ? JSON.stringify({ accepted }) : text);
    return 0;
  },
};
