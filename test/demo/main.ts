// `npm run demo`: the main job on real input. Redis, two workers, a Model Server and an MCP server are processes of their
// own; what is printed at the end is read back from their far ends.
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { answerOf, FleetClient } from '@hermes-fleet/producer';
import type { ActivationBody, CloseBody, CommandResult } from '@hermes-fleet/shared';
import Table from 'cli-table3';
import { type Program, startProgram } from '../setup/processes.ts';
import { startRedis } from '../setup/redis-server.ts';
import { PROGRAM } from './scripts.ts';
import { type DemoTask, demoTasks } from './tasks.ts';

const RUNNER_IMAGE = 'hermes-fleet-runner';
const TASK_IMAGE = 'hermes-fleet-base:bookworm';

interface Outcome {
  readonly task: DemoTask;
  readonly activation: CommandResult<ActivationBody>;
  readonly close: CommandResult<CloseBody>;
  readonly ms: number;
}

function chooseProvider(): 'docker' | 'local' {
  const has = (image: string): boolean =>
    spawnSync('docker', ['image', 'inspect', image], { timeout: 10_000 }).status === 0;
  if (has(RUNNER_IMAGE) && has(TASK_IMAGE)) return 'docker';
  console.log(
    '\n! No Docker engine with the runner image: sandboxes are local processes, WITHOUT isolation (provider "local").\n',
  );
  return 'local';
}

async function embeddedRedis(): Promise<{ readonly url: string; readonly version: string } & AsyncDisposable> {
  const redis = await startRedis();
  return { url: redis.url, version: redis.version, [Symbol.asyncDispose]: async () => await redis.stop() };
}

async function firstLine<T>(program: Program): Promise<T> {
  return JSON.parse(await program.line((line) => line.startsWith('{'))) as T;
}

async function runTask(client: FleetClient, task: DemoTask): Promise<Outcome> {
  const begun = performance.now();
  const sessionId = `demo/${task.name}/${Date.now()}`;
  await client.submit({
    seed: { session_id: sessionId, reply_to: 'demo', identity: { task_id: task.name }, ...task.seed },
    activations: [{ session_id: sessionId, activation_id: 'first', request: { input: task.prompt } }],
    close: { session_id: sessionId, when: 'idle' },
  });
  const close = (await client.wait(sessionId, 'close')) as CommandResult<CloseBody>;
  const activation = (await client.wait(sessionId, 'first')) as CommandResult<ActivationBody>;
  return { task, activation, close, ms: Math.round(performance.now() - begun) };
}

function printResults(outcomes: readonly Outcome[]): void {
  const table = new Table({
    head: ['task', 'result', 'turns', 'tools', 'tokens', 'time', 'answer'],
    style: { head: [], border: [] },
    colWidths: [18, 12, 7, 7, 8, 9, 58],
    wordWrap: true,
  });
  for (const { task, activation, ms } of outcomes) {
    const { body } = activation;
    table.push([
      task.name,
      activation.class === 'ok' ? 'ok' : `${activation.class}/${activation.code}`,
      body?.counts.turns ?? 0,
      body?.counts.tool_calls ?? 0,
      body?.usage.total.total_tokens ?? 0,
      `${(ms / 1000).toFixed(2)} s`,
      answerOf(activation) ?? body?.message ?? '',
    ]);
  }
  console.log(table.toString());
}

function printTrajectory({ task, activation }: Outcome): void {
  console.log(
    `\nOne trajectory, ${task.name} (integrity ${activation.body?.integrity}, Hermes ${activation.body?.hermes_version}):`,
  );
  const short = (text: string): string => (text.length > 130 ? `${text.slice(0, 130)}…` : text).replaceAll('\n', '⏎');
  for (const item of activation.body?.response.output ?? []) {
    if (item.type === 'function_call') console.log(`  call    ${item.name} ${short(item.arguments)}`);
    else if (item.type === 'function_call_output') console.log(`  output  ${short(item.output)}`);
    else if (item.type === 'message') console.log(`  answer  ${short(item.content.map(({ text }) => text).join(''))}`);
    else console.log(`  reason  ${short(item.summary.map(({ text }) => text).join(''))}`);
  }
}

/** What the other sides saw; the answers must be theirs. */
function checkFarEnds(
  outcomes: readonly Outcome[],
  far: { readonly modelLog: string; readonly salt: string },
): string[] {
  const problems: string[] = [];
  const modelCalls = readFileSync(far.modelLog, 'utf8')
    .trimEnd()
    .split('\n')
    .filter((line) => line.includes('/chat/completions')).length;
  const counted = outcomes.reduce((sum, { activation }) => sum + (activation.body?.counts.model_tries ?? 0), 0);
  console.log('\nRead back from the far ends:');
  console.log(`  model server    ${modelCalls} calls arrived; the results say ${counted}`);
  if (modelCalls !== counted) problems.push('the model server counted other calls than the results');
  const weather = outcomes.filter(({ task }) => task.name.startsWith('weather'));
  const salted = weather.filter(({ activation }) => answerOf(activation)?.includes(far.salt) === true).length;
  console.log(`  MCP server      its salt of this run (${far.salt}) is in ${salted} of ${weather.length} answers`);
  if (salted !== weather.length) problems.push('an answer does not have what the MCP server said');
  for (const { task, close } of outcomes.filter((outcome) => outcome.task.name.startsWith('coding'))) {
    const ran = close.body?.collected?.commands['run'];
    console.log(
      `  sandbox         ${task.name}: ${PROGRAM} is ${close.body?.collected?.files[0]?.size ?? 0} bytes, and prints ${JSON.stringify(ran?.stdout.trim())} (exit ${ran?.exit_code})`,
    );
    if (ran?.exit_code !== 0) problems.push(`${task.name}: the program in the sandbox does not run`);
  }
  for (const { task, activation } of outcomes)
    if (activation.class !== 'ok')
      problems.push(`${task.name} ended ${activation.class}/${activation.code}: ${activation.body?.message ?? ''}`);
  return problems;
}

const begun = performance.now();
const provider = chooseProvider();
const folder = await mkdtemp(path.join(tmpdir(), 'fleet-demo-'));
const modelLog = path.join(folder, 'model.jsonl');
let problems: string[] = [];
try {
  const ownRedis = process.env['FLEET_REDIS_URL'];
  await using embedded = ownRedis === undefined ? await embeddedRedis() : undefined;
  const redisUrl = ownRedis ?? embedded?.url ?? '';
  console.log(
    `redis     ${embedded === undefined ? 'the one of FLEET_REDIS_URL' : `${embedded.version}, embedded, ${redisUrl}`}`,
  );
  await using model = startProgram('test/setup/model-server-main.ts', [
    '--scripts',
    'test/demo/scripts.ts',
    '--log',
    modelLog,
    '--until-stdin-ends',
  ]);
  await using mcp = startProgram('test/setup/mcp-server-main.ts', ['--until-stdin-ends']);
  const { url: modelUrl } = await firstLine<{ url: string }>(model);
  const tool = await firstLine<{ url: string; authorization: string; salt: string }>(mcp);
  const fleetId = `demo-${process.pid}`;
  const workerEnv = {
    FLEET_REDIS_URL: redisUrl,
    FLEET_ID: fleetId,
    FLEET_PROVIDERS: provider,
    FLEET_LOG_LEVEL: 'info',
    FLEET_SLOTS: '4',
  };
  await using one = startProgram('worker/src/main.ts', ['start'], workerEnv);
  await using two = startProgram('worker/src/main.ts', ['start'], workerEnv);
  const workers = [one, two];
  await Promise.all(workers.map(async (worker) => await worker.line((line) => line.includes('"worker started"'))));
  console.log(
    `workers   2 processes, sandboxes by ${provider}, ready after ${((performance.now() - begun) / 1000).toFixed(1)} s\n`,
  );
  await using client = await FleetClient.connect({ redisUrl, fleetId });
  const tasks = demoTasks({ provider, image: TASK_IMAGE, modelUrl, mcp: tool });
  const outcomes = await Promise.all(
    tasks.map(async (task) => {
      const outcome = await runTask(client, task);
      console.log(`  done  ${task.name} (${outcome.activation.class}, ${(outcome.ms / 1000).toFixed(2)} s)`);
      return outcome;
    }),
  );
  console.log('');
  printResults(outcomes);
  const [first] = outcomes.filter(({ task }) => task.name.startsWith('coding'));
  if (first !== undefined) printTrajectory(first);
  problems = checkFarEnds(outcomes, { modelLog, salt: tool.salt });
  console.log(
    `\nRecords: Redis ${redisUrl}, stream {${fleetId}:1}:results:demo, sessions {${fleetId}:1}:s:*, journals {${fleetId}:1}:j:* (${ownRedis === undefined ? 'the embedded server ends with the demo' : 'kept for 24 h'})`,
  );
  if (problems.length > 0) for (const worker of workers) console.error(worker.output().slice(-6000));
} finally {
  await rm(folder, { recursive: true, force: true });
}
for (const problem of problems) console.error(`demo: ${problem}`);
console.log(
  problems.length === 0
    ? `demo: all as it should be, ${((performance.now() - begun) / 1000).toFixed(1)} s`
    : 'demo: FAILED',
);
process.exitCode = problems.length === 0 ? 0 : 1;
