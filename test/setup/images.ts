import { PassThrough, Readable } from 'node:stream';
import type Docker from 'dockerode';
import tar from 'tar-stream';

/** The runner image brings the static tools that the images below are made of. */
export const RUNNER_IMAGE = 'hermes-fleet-runner';
/** Debian with bash, coreutils, GNU grep and Python. */
export const DEBIAN_IMAGE = 'hermes-fleet-base:bookworm';
/** Nothing but busybox and its applets: `sh`, no bash, no GNU grep. */
export const BUSYBOX_IMAGE = 'hermes-fleet-test:busybox';
/** One static program that is no shell. */
export const BARE_IMAGE = 'hermes-fleet-test:bare';

/** As Alpine: busybox, and musl's loader where the base image brings it; no GNU C library. */
export const MUSL_IMAGE = 'hermes-fleet-test:musl';
/** Debian whose own Python imports the pinned Hermes. */
export const HERMES_IMAGE = 'hermes-fleet-test:hermes';

const APPLETS =
  'sh ls cat mkdir mkfifo rm mv ln cp sleep kill tr dd head tail wc grep sed find stat id env setsid printf chmod chown touch true false echo pwd dirname date yes'.split(
    ' ',
  );

/** Makes the two small images where the engine does not have them. No registry is asked. */
export async function makeImages(docker: Docker): Promise<void> {
  const busybox = await readFromImage(docker, '/opt/toolbox/busybox');
  await importImage(docker, BUSYBOX_IMAGE, (pack) => fillBusybox(pack, busybox));
  // Under a name that busybox does not know as an applet it runs nothing.
  await importImage(docker, BARE_IMAGE, (pack) => pack.entry({ name: 'program', mode: 0o755 }, busybox));
}

function fillBusybox(pack: tar.Pack, busybox: Buffer): void {
  for (const name of ['bin', 'etc', 'tmp', 'root'])
    pack.entry({ name, type: 'directory', mode: name === 'tmp' ? 0o1777 : 0o755 });
  pack.entry({ name: 'bin/busybox', mode: 0o755 }, busybox);
  for (const applet of APPLETS) pack.entry({ name: `bin/${applet}`, type: 'symlink', linkname: 'busybox' });
  pack.entry({ name: 'etc/passwd' }, 'root:x:0:0:root:/root:/bin/sh\n');
  pack.entry({ name: 'etc/group' }, 'root:x:0:\n');
}

/** Makes the images that Hermes runs inside of. */
export async function makeInsideImages(docker: Docker): Promise<void> {
  await makeImages(docker);
  const busybox = await readFromImage(docker, '/opt/toolbox/busybox');
  const loader = `/lib/ld-musl-${process.arch === 'arm64' ? 'aarch64' : 'x86_64'}.so.1`;
  const musl = await readFromImage(docker, loader, DEBIAN_IMAGE).catch(() => undefined);
  await importImage(docker, MUSL_IMAGE, (pack) => {
    fillBusybox(pack, busybox);
    pack.entry({ name: 'lib', type: 'directory', mode: 0o755 });
    pack.entry({ name: 'etc/alpine-release' }, '3.20.0\n');
    if (musl !== undefined) pack.entry({ name: loader.slice(1), mode: 0o755 }, musl);
  });
  if (await isThere(docker, HERMES_IMAGE)) return;
  const source = await docker.createContainer({ Image: RUNNER_IMAGE });
  const target = await docker.createContainer({ Image: DEBIAN_IMAGE });
  try {
    const packages = (await source.getArchive({ path: '/opt/hermes/site/.' })) as Readable;
    await target.putArchive(packages.pipe(new PassThrough()), { path: '/usr/local/lib/python3.11/dist-packages' });
    const [repo = '', tag = ''] = HERMES_IMAGE.split(':');
    await target.commit({ repo, tag });
  } finally {
    await source.remove({ force: true });
    await target.remove({ force: true });
  }
}

async function isThere(docker: Docker, name: string): Promise<boolean> {
  return await docker
    .getImage(name)
    .inspect()
    .then(
      () => true,
      () => false,
    );
}

async function importImage(docker: Docker, name: string, fill: (pack: tar.Pack) => unknown): Promise<void> {
  const [repo = '', tag = ''] = name.split(':');
  if (await isThere(docker, name)) return;
  const pack = tar.pack();
  fill(pack);
  pack.finalize();
  const archive = await whole(pack);
  const progress = await new Promise<NodeJS.ReadableStream>((resolve, reject) => {
    docker.importImage(Readable.from(archive), { repo, tag }, (error: unknown, answer) => {
      if (answer === undefined) reject(error instanceof Error ? error : new Error(String(error)));
      else resolve(answer);
    });
  });
  for await (const event of progress)
    if (event.toString().includes('"error"')) throw new Error(`image ${name} cannot be made (${event.toString()})`);
}

async function readFromImage(docker: Docker, path: string, image = RUNNER_IMAGE): Promise<Buffer> {
  const container = await docker.createContainer({ Image: image });
  try {
    const extract = tar.extract();
    ((await container.getArchive({ path })) as Readable).pipe(extract);
    for await (const entry of extract) return await whole(entry);
    throw new Error(`image ${image} has no ${path}`);
  } finally {
    await container.remove({ force: true });
  }
}

async function whole(stream: AsyncIterable<unknown>): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of stream as AsyncIterable<Buffer>) chunks.push(chunk);
  return Buffer.concat(chunks);
}
