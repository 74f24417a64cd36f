import { type CommandSpec, print } from './command.ts';

export const statusCommand: CommandSpec = {
  name: 'status',
  summary: 'show where a session stands, and why it waits',
  declare: (command) => command.argument('<session-id>', 'id of the session, as it was given'),
  async run({ args, connect, isJson, stdout }) {
    await using client = await connect();
    const status = await client.status(args[0] ?? '');
    if (isJson) await print(stdout, JSON.stringify(status));
    else {
      const lines = [
        `session   ${JSON.stringify(status.session_id)}`,
        `state     ${status.state}`,
        ...(status.waiting_for === null ? [] : [`waits for ${status.waiting_for}`]),
        ...(status.engine === null ? [] : [`engine    ${status.engine}`]),
        ...(status.deadline === null ? [] : [`deadline  ${new Date(status.deadline).toISOString()}`]),
        ...status.commands.map(({ id, state }) => `command   ${id}: ${state}`),
      ];
      await print(stdout, lines.join('\n'));
    }
    return 0;
  },
};
