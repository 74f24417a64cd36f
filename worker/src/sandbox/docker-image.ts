import type { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { FleetError, reasonOf } from '@hermes-fleet/shared';
import type Docker from 'dockerode';
import { untilAborted } from '../cancellation.ts';
import { codeOf, dockerCall, statusOf } from './docker-call.ts';

const PULL_MS = 1_800_000;
const TRIES = 3;
const PAUSE_MS = 2_000;
const NOT_FOUND = 404;
/** What a registry says that it will say again. */
const LASTING =
  /not found|manifest unknown|denied|unauthorized|no basic auth|does not exist|no such host|invalid reference|server misbehaving/i;
const NAME = '[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*';
/** An image reference as the registries define it. Nothing else may become part of a path of the engine's API. */
const REFERENCE = new RegExp(
  `^(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::\\d+)?/)?${NAME}(?:/${NAME})*(?::\\w[\\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?$`,
);

export interface Image {
  readonly id: string;
  /** User of its commands; '' is root. */
  readonly user: string;
}

/** Pulls missing task images: one pull per image at a time, a few tries where the registry may answer better later. */
export class Images {
  readonly #docker: Docker;
  readonly #policy: 'missing' | 'never';
  readonly #pulling = new Map<string, Promise<Image>>();

  constructor(docker: Docker, policy: 'missing' | 'never') {
    this.#docker = docker;
    this.#policy = policy;
  }

  /** An image that is on the engine. @throws FleetError `infra/sandbox_image` when it cannot be had, `infra/sandbox_create` when the registry is in trouble */
  async ensure(name: string, signal: AbortSignal): Promise<Image> {
    if (!REFERENCE.test(name))
      throw new FleetError('infra/sandbox_image', `image ${JSON.stringify(name)} is no image reference`);
    const known = await this.#find(name, signal);
    if (known !== undefined) return known;
    if (this.#policy === 'never')
      throw new FleetError('infra/sandbox_image', `image ${name} is not on the engine, and FLEET_PULL is "never"`);
    let pull = this.#pulling.get(name);
    if (pull === undefined) {
      pull = this.#pull(name).finally(() => this.#pulling.delete(name));
      this.#pulling.set(name, pull);
    }
    return await untilAborted(signal, pull);
  }

  async #find(name: string, signal?: AbortSignal): Promise<Image | undefined> {
    const call = {
      what: `looking for image ${name}`,
      code: 'infra/sandbox_create',
      ...(signal === undefined ? {} : { signal }),
    } as const;
    return await dockerCall(call, async () => {
      try {
        const { Id: id, Config: config } = await this.#docker.getImage(name).inspect();
        return { id, user: config?.User ?? '' };
      } catch (error) {
        if (statusOf(error) === NOT_FOUND) return undefined;
        throw error;
      }
    });
  }

  async #pull(name: string): Promise<Image> {
    for (let tries = 1; ; tries++) {
      try {
        return await this.#pullOnce(name);
      } catch (error) {
        const reason = reasonOf(error instanceof FleetError ? (error.cause ?? error) : error);
        if (LASTING.test(reason))
          throw new FleetError('infra/sandbox_image', `image ${name} cannot be had (${reason})`, { cause: error });
        const code = error instanceof FleetError ? error.code : codeOf(error, 'infra/sandbox_create');
        if (code === 'infra/sandbox_disk' || tries >= TRIES)
          throw new FleetError(code, `image ${name} could not be pulled in ${tries} tries (${reason})`, {
            cause: error,
          });
        await sleep(PAUSE_MS * tries * (0.5 + Math.random()));
      }
    }
  }

  async #pullOnce(name: string): Promise<Image> {
    let stream: Readable | undefined;
    try {
      await dockerCall(
        { what: `pulling image ${name}`, code: 'infra/sandbox_create', deadlineMs: PULL_MS },
        async () => {
          stream = (await this.#docker.pull(name)) as Readable;
          await readProgress(stream);
        },
      );
    } finally {
      stream?.destroy();
    }
    const image = await this.#find(name);
    if (image === undefined) throw new Error('it is not there after its pull');
    return image;
  }
}

/**
 * Reads a pull to its end. An error comes inside a stream with status 200, as an event among others; the library's own
 * `followProgress` takes it for progress.
 */
async function readProgress(stream: Readable): Promise<void> {
  let rest = '';
  for await (const text of stream.setEncoding('utf8') as AsyncIterable<string>) {
    const lines = (rest + text).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) checkProgress(line);
  }
  checkProgress(rest);
}

function checkProgress(line: string): void {
  if (line.trim() === '') return;
  const { error } = JSON.parse(line) as { readonly error?: string };
  if (error !== undefined) throw new Error(error);
}
