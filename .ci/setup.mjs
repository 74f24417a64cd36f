// Makes, once, what `npm run demo` and `npm test` need: npm packages, `.venv` with the pinned Hermes and an embedded Redis,
// and the runner image where a Docker engine answers. It runs before `npm ci`, so it imports Node's own modules only.
// Each step has a stamp (a hash of what it is made from), written last: a step that was cut short is made again.
//
// usage: node .ci/setup.mjs [--test] [--image | --no-image]
//   --test      also what only the tests need (test/requirements.txt)
//   --image     the runner image must be there in the end (without it: one that cannot be made is said aloud and left out)
//   --no-image  leave the runner image out
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  closeSync,
  createWriteStream,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const root = fileURLToPath(new URL('..', import.meta.url));
const at = (...parts) => join(root, ...parts);
const IMAGE = 'hermes-fleet-runner';
const LOG = '.cache/setup.log';
const HEARTBEAT_MS = 5_000;
const ENGINE_ANSWERS_MS = 10_000;

class SetupError extends Error {
  /** @param details what a command said before it failed, for people */
  constructor(message, details = '') {
    super(message);
    this.details = details;
  }
}

const say = (line) => console.log(line);
const seconds = (since) => `${((performance.now() - since) / 1000).toFixed(1)} s`;

function hashOf(files, ...extra) {
  const hash = createHash('sha256');
  for (const file of files)
    hash
      .update(file)
      .update('\0')
      .update(readFileSync(at(file)))
      .update('\0');
  return hash.update(JSON.stringify(extra)).digest('hex').slice(0, 16);
}

const readStamp = (path) => (existsSync(at(path)) ? readFileSync(at(path), 'utf8').trim() : '');

/** Runs a command to its end. Its output goes to the log; its last line is shown now and then, and the tail if it fails. */
async function run(command, args, { fix, env = {} }) {
  const said = `${command} ${args.join(' ')}`.replaceAll(root, '');
  const log = createWriteStream(at(LOG), { flags: 'a' });
  log.write(`\n$ ${said}\n`);
  const begun = performance.now();
  let tail = '';
  const child = spawn(command, args, { cwd: root, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (chunk) => {
      log.write(chunk);
      tail = (tail + chunk).slice(-4000);
    });
  const lastLine = () => {
    const lines = tail.split(/[\r\n]+/).filter(Boolean);
    return (lines.at(-1) ?? said).replaceAll(/https?:\S+\//g, '').slice(0, 90);
  };
  const endWithUs = () => child.kill();
  process.once('exit', endWithUs);
  const heartbeat = setInterval(() => say(`        ${seconds(begun).padStart(7)}  ${lastLine()}`), HEARTBEAT_MS);
  try {
    await new Promise((resolve, reject) => {
      child.on('error', (cause) => reject(new SetupError(`cannot start ${command}: ${cause.message}`)));
      child.on('close', (code, signal) => {
        if (code === 0) resolve();
        else {
          const what = `\`${said}\` ended with ${signal ?? code}`;
          reject(new SetupError(`${what}. ${fix}, then try again (all output: ${LOG})`, tail.trim()));
        }
      });
    });
  } finally {
    process.off('exit', endWithUs);
    clearInterval(heartbeat);
    log.end();
  }
}

/** One step: left alone when it is done already, else announced, made and timed. */
async function step(title, done, make) {
  if (done) {
    say(`  ok    ${title}`);
    return;
  }
  const begun = performance.now();
  say(`  make  ${title}`);
  await make();
  say(`  done  ${title} (${seconds(begun)})`);
}

async function nodePackages() {
  const stamp = 'node_modules/.stamp';
  const key = hashOf(['package-lock.json'], process.versions.modules, process.arch, process.platform);
  const done = readStamp(stamp) === key;
  await step('npm packages (node_modules, from package-lock.json)', done, async () => {
    await run('npm', ['ci', '--no-audit', '--no-fund', '--loglevel', 'http'], {
      fix: 'See that the npm registry answers (npm ping) and that package-lock.json fits package.json',
    });
    writeFileSync(at(stamp), key);
  });
}

/** The first Python that the pinned Hermes accepts (its Requires-Python is >=3.11,<3.14). */
function findPython() {
  const seen = [];
  const names = [process.env['FLEET_PYTHON'], 'python3', 'python3.13', 'python3.12', 'python3.11', 'python'];
  for (const name of names.filter(Boolean)) {
    const probe = 'import sys; print("%d.%d" % sys.version_info[:2], sys.executable)';
    const { status, stdout } = spawnSync(name, ['-c', probe], { encoding: 'utf8' });
    if (status !== 0) continue;
    const [version, ...path] = stdout.trim().split(' ');
    if (/^3\.1[123]$/.test(version)) return { version, path: path.join(' ') };
    seen.push(`${name} is ${version}`);
  }
  throw new SetupError(
    `Python 3.11, 3.12 or 3.13 is needed (found: ${seen.join(', ') || 'none'}). Install one, or set FLEET_PYTHON to its path.`,
  );
}

const pip = (requirements) =>
  run(
    at('.venv/bin/python'),
    `-m pip install --disable-pip-version-check --no-input --progress-bar off -r ${requirements}`.split(' '),
    { fix: 'See that the Python package index answers and that there is 1 GB of free space' },
  );

async function pythonEnvironment() {
  const stamp = '.venv/.stamp';
  const key = hashOf(['requirements.txt'], process.arch, process.platform);
  const done = readStamp(stamp) === key && spawnSync(at('.venv/bin/python'), ['-c', '']).status === 0;
  await step('Hermes and the embedded Redis (.venv, from requirements.txt)', done, async () => {
    const python = findPython();
    // Its scripts carry absolute paths, so it cannot be made aside and renamed: what is there is half-made or stale.
    rmSync(at('.venv'), { recursive: true, force: true });
    try {
      await run(python.path, ['-m', 'venv', '.venv'], { fix: 'Set FLEET_PYTHON to a whole Python' });
    } catch (error) {
      rmSync(at('.venv'), { recursive: true, force: true });
      if (!/ensurepip|No module named venv/.test(error.details)) throw error;
      throw new SetupError(
        `${python.path} cannot make a virtual environment. On Debian and Ubuntu: apt-get install python${python.version}-venv`,
      );
    }
    await pip('requirements.txt');
    // With a home of its own, else Hermes writes into the user's.
    await run(at('.venv/bin/python'), ['-c', 'import run_agent, mcp'], {
      env: { HERMES_HOME: at('.cache/hermes-home') },
      fix: 'The pinned Hermes does not import: see that requirements.txt is as committed',
    });
    writeFileSync(at(stamp), key);
  });
}

async function testTools() {
  const stamp = '.venv/.stamp-test';
  const key = hashOf(['requirements.txt', 'test/requirements.txt']);
  await step('tools of the tests (.venv, from test/requirements.txt)', readStamp(stamp) === key, async () => {
    await pip('test/requirements.txt');
    writeFileSync(at(stamp), key);
  });
}

function docker(...args) {
  const { status, stdout } = spawnSync('docker', args, { encoding: 'utf8', timeout: ENGINE_ANSWERS_MS });
  return status === 0 ? stdout.trim() : undefined;
}

/** Everything that the image is made from: the pin, and worker/runner without its tests and local certificates. */
function imageInputs() {
  const runner = readdirSync(at('worker/runner'), { withFileTypes: true })
    .filter((entry) => entry.isFile() && /(\.py|\.sh|^Dockerfile)$/.test(entry.name))
    .map((entry) => `worker/runner/${entry.name}`);
  return ['requirements.txt', ...runner.toSorted()];
}

async function runnerImage(mustHave) {
  const version = docker('version', '--format', '{{.Server.Version}}');
  if (version === undefined) {
    if (mustHave)
      throw new SetupError('the runner image needs a Docker engine, and none answers `docker version`: start one');
    say('  --    runner image: no Docker engine answers, so sandboxes are local processes, without isolation');
    return;
  }
  const key = hashOf(imageInputs(), process.arch);
  const label = '{{index .Config.Labels "hermes-fleet.inputs"}}';
  const have = docker('image', 'inspect', '-f', label, IMAGE);
  try {
    await step(`runner image (${IMAGE}, on Docker ${version})`, have === key, () =>
      run('bash', ['worker/runner/build.sh', IMAGE, key], {
        fix: 'Give the engine a registry, or apt-get install mmdebstrap and be root, or set BASE_IMAGE to an image with Python 3.11',
      }),
    );
  } catch (error) {
    if (mustHave || !(error instanceof SetupError)) throw error;
    const left =
      have === undefined
        ? 'sandboxes are local processes, without isolation'
        : 'the image made earlier, now stale, stays';
    say(`  !!    the runner image cannot be made here, so ${left}`);
    for (const line of error.details.split('\n').slice(-3)) say(`        | ${line}`);
    say(`        ${error.message}`);
  }
}

function isAlive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}

/** One set-up at a time in one clone; the lock of a process that is gone is taken over. */
async function takeLock() {
  const lock = at('.cache/setup.lock');
  for (let hasSaid = false; ;) {
    try {
      const file = openSync(lock, 'wx');
      writeSync(file, String(process.pid));
      closeSync(file);
      break;
    } catch (error) {
      if (error.code !== 'EEXIST') throw error;
    }
    const owner = existsSync(lock) ? Number(readFileSync(lock, 'utf8')) : 0;
    if (owner === 0 && looks === 0) {
      await sleep(500); // it may be written this very moment
    } else if (owner > 0 && isAlive(owner)) {
      if (!hasSaid) say(`  wait  another set-up is running (process ${owner})`);
      hasSaid = true;
      await sleep(500);
    } else rmSync(lock, { force: true });
  }
  process.once('exit', () => rmSync(lock, { force: true }));
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(130));
}

function readOptions() {
  try {
    const boolean = { type: 'boolean', default: false };
    const options = { test: boolean, image: boolean, 'no-image': boolean };
    return parseArgs({ options, strict: true }).values;
  } catch (error) {
    console.error(`${error.message}\nusage: node .ci/setup.mjs [--test] [--image | --no-image]`);
    return process.exit(64);
  }
}

const options = readOptions();
try {
  const started = performance.now();
  const [major, minor] = process.versions.node.split('.').map(Number);
  if (major < 20 || (major === 20 && minor < 19))
    throw new SetupError(`Node 20.19 or newer is needed; this is ${process.versions.node}`);
  mkdirSync(at('.cache'), { recursive: true });
  say('set-up');
  await takeLock();
  // One after the other: both are bound by the processor and the disk, and gain nothing side by side (measured).
  await nodePackages();
  await pythonEnvironment();
  if (options.test) await testTools();
  if (!options['no-image']) await runnerImage(options.image || process.env['FLEET_TEST_REQUIRE'] === 'all');
  say(`set-up ready in ${seconds(started)}`);
} catch (error) {
  if (!(error instanceof SetupError)) throw error;
  if (error.details !== '') console.error(error.details);
  console.error(`set-up failed: ${error.message}`);
  process.exitCode = 78;
}
