import type { Duplex } from 'node:stream';
import { StringDecoder } from 'node:string_decoder';
import type Docker from 'dockerode';
import { dockerCall } from './docker-call.ts';
import { LABEL, ROLE } from './docker-labels.ts';
import { readMultiplexed } from './docker-streams.ts';
import type { RunnerProcess } from './provider.ts';

const MIB = 1024 * 1024;
const REMOVE_MS = 15_000;

export interface DockerRunnerOptions {
  readonly docker: Docker;
  readonly fleetId: string;
  readonly image: string;
  readonly memoryMib: number;
  readonly signal: AbortSignal;
  readonly onOutput: (chunk: Buffer) => void;
  readonly onLog: (text: string) => void;
}

/**
 * The runner host in a container of its own: no network, nothing to write but its homes, two capabilities to give each
 * child a uid. Attached before it starts, and gone when this end of its stdin is (`worker/runner/PROTOCOL.md`).
 */
export async function launchDockerRunner(options: DockerRunnerOptions): Promise<RunnerProcess> {
  const { docker, fleetId, image, memoryMib, signal, onOutput, onLog } = options;
  const call = { what: 'starting the runner host', code: 'infra/runner_start', signal } as const;
  signal.throwIfAborted();
  // Without the signal: an abort half-way would leave a container that nobody knows.
  const container = await dockerCall(
    { what: call.what, code: call.code },
    async () =>
      await docker.createContainer({
        Image: image,
        Labels: { [LABEL.fleet]: fleetId, [LABEL.role]: ROLE.runner },
        Hostname: 'runner',
        Env: ['PYTHONHASHSEED=0'],
        OpenStdin: true,
        StdinOnce: true,
        AttachStdin: true,
        AttachStdout: true,
        AttachStderr: true,
        HostConfig: {
          AutoRemove: true,
          NetworkMode: 'none',
          IpcMode: 'none',
          ReadonlyRootfs: true,
          CapDrop: ['ALL'],
          CapAdd: ['SETUID', 'SETGID'],
          SecurityOpt: ['no-new-privileges'],
          PidsLimit: 4096,
          Memory: memoryMib * MIB,
          MemorySwap: memoryMib * MIB,
          Tmpfs: { '/tmp/a': 'rw,nosuid,nodev,noexec,size=512m' },
          LogConfig: { Type: 'none', Config: {} },
        },
      }),
    removeRunner,
  );
  const remove = async (): Promise<void> => await removeRunner(container);
  try {
    // The declared type knows less than what it is: the hijacked socket.
    const connection = (await dockerCall(
      call,
      async () => await container.attach({ stream: true, stdin: true, stdout: true, stderr: true, hijack: true }),
    )) as Duplex;
    const decoder = new StringDecoder('utf8');
    const ended = readMultiplexed(connection, (chunk, stream) =>
      stream === 'stdout' ? onOutput(chunk) : onLog(decoder.write(chunk)),
    ).then(({ lost }) => ({
      reason: lost === undefined ? 'the runner host has ended' : `the runner host was lost (${lost.message})`,
      oom: false,
    }));
    await dockerCall(call, async () => await container.start());
    return {
      write: (data) => void (connection.destroyed || connection.write(data)),
      get queuedBytes() {
        return connection.writableLength;
      },
      ended,
      remove: async () => {
        connection.destroy();
        await remove();
      },
    };
  } catch (error) {
    await remove();
    throw error;
  }
}

async function removeRunner(container: Docker.Container): Promise<void> {
  await dockerCall(
    { what: 'removing the runner host', code: 'infra/sandbox_exec', deadlineMs: REMOVE_MS },
    async () => await container.remove({ force: true }),
  ).catch(() => undefined);
}
