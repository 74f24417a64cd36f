import { type CommandSpec, print } from './command.ts';

/** A stream from which nothing came for so long has been read. */
const IDLE_MS = 2_000;

export const resultsCommand: CommandSpec = {
  name: 'results',
  summary: 'print the results of a stream, one JSON line each',
  endsBySignal: true,
  declare: (command) =>
    command
      .option('--follow', 'go on when everything is read, until Ctrl-C')
      .option('--reply-to <name>', 'results stream', 'default')
      .option('--group <name>', 'consumer group; each group gets every result once', 'cli')
      .option('--consumer <name>', 'which reader of the group this is (default: host and process)')
      .option('--no-ack', 'leave what is read to be given out again'),
  async run({ connect, stdout, signal }, values) {
    const { safeLine } = await import('../rollout-record.ts');
    await using client = await connect();
    const idle = new AbortController();
    const restart = (): NodeJS.Timeout | undefined =>
      values['follow'] === true ? undefined : setTimeout(() => idle.abort(), IDLE_MS);
    let timer = restart();
    const entries = client.results({
      group: String(values['group']),
      replyTo: String(values['replyTo']),
      ...(typeof values['consumer'] === 'string' ? { consumer: values['consumer'] } : {}),
      signal: AbortSignal.any([signal, idle.signal]),
    });
    for await (const entry of entries) {
      clearTimeout(timer);
      await print(stdout, safeLine(JSON.stringify(entry.result)));
      if (values['ack'] === true) await entry.ack();
      timer = restart();
    }
    clearTimeout(timer);
    return 0;
  },
};
