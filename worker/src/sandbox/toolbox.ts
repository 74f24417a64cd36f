import type { Readable } from 'node:stream';
import { FleetError } from '@hermes-fleet/shared';
import type Docker from 'dockerode';
import tar from 'tar-stream';
import { dockerCall } from './docker-call.ts';
import { packed, withStopped } from './docker-stopped.ts';

/** Where a box finds the tools that it was given. */
export const TOOLBOX = '/.hermes-fleet/bin';
const SOURCE = '/opt/toolbox';
const MAX_BYTES = 64 * 1024 * 1024;

/** Applets of busybox that stand in for missing POSIX tools; only names that the box itself lacks are looked up there. */
const APPLETS =
  'awk basename cat chmod chown cp cut date dd df dirname du echo env expr false find grep gunzip gzip head id kill ln ls mkdir mktemp mv nohup od printf ps pwd readlink realpath rm rmdir sed seq setsid sh sleep sort stat tail tar tee test timeout touch tr true uname uniq wc which xargs'.split(
    ' ',
  );

/** Static shell tools for boxes that lack them, taken once from the runner image. */
export class Toolbox {
  readonly #docker: Docker;
  readonly #image: string;
  readonly #fleetId: string;
  #archive: Promise<{ readonly bash: Buffer; readonly busybox: Buffer }> | undefined;

  constructor(docker: Docker, image: string, fleetId: string) {
    this.#docker = docker;
    this.#image = image;
    this.#fleetId = fleetId;
  }

  /** Puts the tools into a container, running or not. @throws FleetError `infra/sandbox_no_shell` */
  async putInto(container: Docker.Container, signal: AbortSignal): Promise<void> {
    // Without the signal: other boxes wait for the same tools.
    const tools = await (this.#archive ??= this.#fetch().catch((error: unknown) => {
      this.#archive = undefined;
      throw error;
    }));
    const pack = tar.pack();
    pack.entry({ name: '.hermes-fleet', type: 'directory', mode: 0o755 });
    pack.entry({ name: '.hermes-fleet/bin', type: 'directory', mode: 0o755 });
    pack.entry({ name: '.hermes-fleet/bin/bash', mode: 0o755 }, tools.bash);
    pack.entry({ name: '.hermes-fleet/bin/busybox', mode: 0o755 }, tools.busybox);
    for (const applet of APPLETS)
      pack.entry({ name: `.hermes-fleet/bin/${applet}`, type: 'symlink', linkname: 'busybox' });
    pack.finalize();
    await dockerCall(
      { what: 'putting shell tools into the sandbox', code: 'infra/sandbox_no_shell', signal },
      async () => await container.putArchive(await packed(pack), { path: '/' }),
    );
  }

  async #fetch(): Promise<{ readonly bash: Buffer; readonly busybox: Buffer }> {
    const call = { what: `reading ${SOURCE} of image ${this.#image}`, code: 'infra/sandbox_no_shell' } as const;
    return await withStopped(this.#docker, { image: this.#image, fleetId: this.#fleetId }, call, async (container) => {
      const stream = await dockerCall(call, async () => await container.getArchive({ path: SOURCE }));
      const files = await dockerCall(call, async () => await readTar(stream as Readable));
      const [bash, busybox] = [files.get('toolbox/bash'), files.get('toolbox/busybox')];
      if (bash === undefined || busybox === undefined)
        throw new FleetError('infra/sandbox_no_shell', `image ${this.#image} has no ${SOURCE}`);
      return { bash, busybox };
    });
  }
}

async function readTar(stream: Readable): Promise<Map<string, Buffer>> {
  const extract = tar.extract();
  stream.pipe(extract);
  const files = new Map<string, Buffer>();
  let size = 0;
  for await (const entry of extract) {
    const chunks: Buffer[] = [];
    for await (const chunk of entry as AsyncIterable<Buffer>) {
      size += chunk.length;
      if (size > MAX_BYTES) throw new Error(`the toolbox is over ${MAX_BYTES} bytes`);
      chunks.push(chunk);
    }
    if (entry.header.type === 'file') files.set(entry.header.name, Buffer.concat(chunks));
  }
  return files;
}
