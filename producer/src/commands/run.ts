import type { PreparationValues } from '../sweep-preparation.ts';
import type { SweepState } from '../sweep-progress.ts';
import type { SweepSummary } from '../sweep-summary.ts';
import { type CommandSpec, type Invocation, print, wholeNumber } from './command.ts';

interface RunValues extends PreparationValues {
  readonly concurrency: number;
  readonly retries: number;
  readonly deadline?: number;
  readonly quiet?: true;
}

const MANY = 1_000_000_000;
const MOST_LANES = 100_000;
const LONGEST_DEADLINE_S = 2_000_000;

export const runCommand: CommandSpec = {
  name: 'run',
  summary: 'run every task of a file, and write down how each rollout ended',
  endsBySignal: true,
  declare: (command) =>
    command
      .argument('<tasks.jsonl>', 'one task a line: responses_create_params, and fields that travel to the result')
      .requiredOption(
        '-o, --output <out.jsonl>',
        'one line per rollout that may be scored; _failures and _manifest beside it',
      )
      .option('-k, --repeats <number>', 'rollouts of each task', wholeNumber(1, MANY), 1)
      .option('-c, --concurrency <number>', 'rollouts under way at a time', wholeNumber(1, MOST_LANES), 8)
      .option('--config <file.json>', 'what all sessions have in common: sandbox, hermes, model, …')
      .option('--resume', 'go on with a sweep that was interrupted; what is done is kept')
      .option(
        '--retries <number>',
        'attempts beyond the first, where another one may end better',
        wholeNumber(0, 1000),
        2,
      )
      .option('--skip-invalid', 'run the valid tasks although others are not valid')
      .option('--sweep-id <id>', 'name of the sweep, for cancel --sweep (default: made up)')
      .option('--limit <number>', 'only so many tasks, from the front', wholeNumber(0, MANY))
      .option(
        '--deadline <seconds>',
        'longest time from hand-in to result of one attempt (default: timeouts.session_ttl_s and a day)',
        wholeNumber(1, LONGEST_DEADLINE_S),
      )
      .option('--observations', 'put the observation bundle into each result line')
      .option('--quiet', 'no progress on stderr'),
  run: async (invocation, values) => await run(invocation, values as unknown as RunValues),
};

async function run(invocation: Invocation, values: RunValues): Promise<number> {
  const { prepareSweep } = await import('../sweep-preparation.ts');
  await using prepared = await prepareSweep(invocation, values);
  const { tasks, manifest } = prepared;
  const { EXIT } = await import('../exit-status.ts');
  if (manifest === undefined) {
    await print(
      invocation.stdout,
      invocation.isJson ? JSON.stringify({ expected: 0, refused: tasks.errors.length }) : '0 tasks',
    );
    return tasks.errors.length > 0 ? EXIT.notAll : EXIT.done;
  }
  const { Sweep } = await import('../sweep.ts');
  const { writeManifest } = await import('../sweep-manifest.ts');
  await using client = await invocation.connect();
  await writeManifest(prepared.files.manifest, manifest);
  const sweep = new Sweep({
    client,
    manifest,
    tasks,
    files: prepared.files,
    recorded: prepared.recorded,
    concurrency: values.concurrency,
    retries: values.retries,
    deadlineMs: values.deadline === undefined ? undefined : values.deadline * 1000,
    signal: invocation.signal,
  });
  let summary: SweepSummary;
  {
    await using _display = values.quiet === true ? undefined : await display(invocation, sweep);
    summary = await sweep.run();
  }
  const { summaryText } = await import('../sweep-summary.ts');
  await print(invocation.stdout, invocation.isJson ? JSON.stringify(summary) : summaryText(summary));
  if (invocation.signal.aborted) return EXIT.interrupted;
  return summary.counts.infra + summary.counts.cancelled + summary.refused > 0 ? EXIT.notAll : EXIT.done;
}

async function display({ stderr }: Invocation, sweep: { readonly state: SweepState }): Promise<AsyncDisposable> {
  const { displayProgress } = await import('../progress-display.ts');
  return await displayProgress(stderr, () => sweep.state);
}
