import type Docker from 'dockerode';
import type tar from 'tar-stream';
import { type CallOptions, dockerCall } from './docker-call.ts';
import { LABEL, ROLE } from './docker-labels.ts';

const DROP_MS = 30_000;

/** Lends a container of an image that never starts: the engine's way to the files of an image, or of a volume. */
export async function withStopped<T>(
  docker: Docker,
  made: { readonly image: string; readonly fleetId: string; readonly mounts?: Docker.MountSettings[] },
  call: CallOptions,
  use: (container: Docker.Container) => Promise<T>,
): Promise<T> {
  const drop = async (container: Docker.Container): Promise<void> =>
    await dockerCall(
      { what: call.what, code: call.code, deadlineMs: DROP_MS },
      async () => await container.remove({ force: true }),
    ).catch(() => undefined);
  const container = await dockerCall(
    call,
    async () =>
      await docker.createContainer({
        Image: made.image,
        Labels: { [LABEL.fleet]: made.fleetId, [LABEL.role]: ROLE.toolbox },
        HostConfig: { Mounts: made.mounts ?? [] },
      }),
    drop,
  );
  try {
    return await use(container);
  } finally {
    await drop(container);
  }
}

/** Whole, since a body of known length lets the engine's connection be used again. */
export async function packed(pack: tar.Pack): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of pack as AsyncIterable<Buffer>) chunks.push(chunk);
  return Buffer.concat(chunks);
}
