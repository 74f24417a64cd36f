import { execFileSync } from 'node:child_process';

const FIRST_CHILD_UID = 20_000;

/** Two activations in one runner host: what the first may do to the second, and to what is its own. */
export interface Siblings {
  /** Names of the attempts on the other one and on the host that worked. */
  readonly attack: () => string[];
  /** Whether what is tried on the other one works for that one itself: the attempts are good ones. */
  readonly control: () => boolean;
}

/** @throws Error unless exactly two children with a uid of their own are running there */
export function siblingsIn(runner: string): Siblings {
  const exec = (user: string, script: string): string =>
    execFileSync('docker', ['exec', '-u', user, runner, 'sh', '-c', script], { encoding: 'utf8', stdio: 'pipe' });
  const works = (user: string, script: string): boolean => {
    try {
      exec(user, script);
      return true;
    } catch {
      return false;
    }
  };
  const owners = exec('0:0', 'for p in /proc/[0-9]*; do echo "${p#/proc/} $(stat -c %u $p)"; done');
  const children = owners
    .trim()
    .split('\n')
    .map((line) => line.split(' '))
    .filter(([, uid]) => Number(uid) >= FIRST_CHILD_UID);
  const [[, own] = [], [pid, theirs] = []] = children;
  if (own === undefined || theirs === undefined || own === theirs || children.length !== 2)
    throw new Error(`not two children with a uid each: ${JSON.stringify(children)}`);
  const home = `/tmp/a/${exec('0:0', 'ls -n /tmp/a').match(new RegExp(` ${theirs} .* (\\S+)$`, 'm'))?.[1] ?? ''}`;
  const attempts = {
    signal: `kill -0 ${pid}`,
    kill: `kill -9 ${pid}`,
    environment: `cat /proc/${pid}/environ`,
    memory: `cat /proc/${pid}/maps`,
    descriptors: `ls /proc/${pid}/fd/`,
    channel: `echo forged >/proc/${pid}/fd/3`,
    home: `ls ${home}`,
    file: `cat ${home}/config.yaml`,
    plant: `touch ${home}/planted`,
    namesake: 'mkdir /tmp/a/planted',
    host: 'kill -9 1',
    'host memory': 'cat /proc/1/maps',
    code: 'echo >>/opt/runner/host.py',
  };
  return {
    attack: () => Object.entries(attempts).flatMap(([name, script]) => (works(`${own}:${own}`, script) ? [name] : [])),
    control: () =>
      works(`${theirs}:${theirs}`, [attempts.signal, attempts.home, attempts.file, attempts.plant].join('&&')),
  };
}
