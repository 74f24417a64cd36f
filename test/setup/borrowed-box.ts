import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import type { SeedInput } from '@hermes-fleet/shared';
import { DEBIAN_IMAGE } from './images.ts';

/** The docker command, as the owner of a container would use it. */
export const docker = (...args: string[]): string =>
  execFileSync('docker', args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }).trim();

/** A container that is not the fleet's, named as NeMo Gym's Docker provider names its own, with a service that ticks in it. */
export class OwnersBox implements Disposable {
  readonly name: string;

  constructor(image = DEBIAN_IMAGE, options: readonly string[] = ['--network', 'none']) {
    this.name = `nemo-gym-${randomBytes(16).toString('hex')}`;
    const service = 'mkdir -p /work /srv; echo mine >/work/marker; while :; do echo tick >>/srv/ticks; sleep 0.2; done';
    docker('run', '-d', '--init', '--name', this.name, ...options, image, 'sh', '-c', service);
  }

  /** What a seed says to borrow it: NeMo Gym's own descriptor, and the workdir. */
  access(more: Readonly<Record<string, string>> = {}): Extract<SeedInput['sandbox'], { access: object }> {
    return {
      access: {
        connection: {
          kind: 'direct',
          provider: 'docker',
          descriptor: { sandbox_id: this.name, workdir: '/work', ...more },
        },
        workdir: '/work',
      },
    };
  }

  run(script: string): string {
    return docker('exec', this.name, 'sh', '-c', script);
  }

  /** Command lines of all that runs in it but its own service and init. */
  processes(): string[] {
    return docker('top', this.name, '-eo', 'pid,args')
      .split('\n')
      .slice(1)
      .map((line) => line.trim().replace(/^\d+ +/, ''))
      .filter((line) => !/docker-init|while :; do echo tick|^sleep 0\.2$/.test(line));
  }

  /** Whether its service still ticks. */
  isTicking(): boolean {
    const count = (): number => Number(this.run('wc -l </srv/ticks'));
    const before = count();
    this.run('sleep 0.6');
    return count() > before;
  }

  /** Files of ours that are left in it. */
  leftovers(): string[] {
    return this.run('ls -d /tmp/.hf-* /tmp/* /.hermes-fleet/* 2>/dev/null; true').split('\n').filter(Boolean);
  }

  [Symbol.dispose](): void {
    docker('rm', '-f', '-v', this.name);
  }
}
