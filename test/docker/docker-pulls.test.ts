import Docker from 'dockerode';
import { describe, expect, test } from 'vitest';
import { codeOf, deadline } from '../conformance/bench.ts';
import { dockerFleet } from '../setup/docker-fixture.ts';
import { engineWithPulls, type PullAnswer } from '../setup/engine-front.ts';

const event = (value: object): string => `${JSON.stringify(value)}\r\n`;
const failing = (error: string): string =>
  event({ status: 'Pulling from x' }) + event({ errorDetail: { message: error }, error });

/** Codes of creates that need a pull of the same image, and the number of pulls. */
async function outcome(answer: PullAnswer, boxes = 1): Promise<[readonly string[], number]> {
  await using front = await engineWithPulls(answer);
  await using fleet = await dockerFleet({ engine: new Docker({ socketPath: front.socketPath }), pull: 'missing' });
  const image = `hermes-fleet-test-absent-${fleet.fleetId}`;
  const create = async (): Promise<string> =>
    await codeOf(fleet.provider.create(fleet.bench.spec({ image }), { signal: deadline() }));
  const codes = await Promise.all(Array.from({ length: boxes }, create));
  return [[...new Set(codes)], front.pulls()];
}

describe('pulls', () => {
  test.each<[string, PullAnswer]>([
    ['an unknown image', { status: 404, body: '{"message":"pull access denied for x, repository does not exist"}' }],
    [
      'a refused login',
      { status: 500, body: '{"message":"Get https://r/v2/: unauthorized: authentication required"}' },
    ],
    [
      'an unknown tag, told inside a stream of status 200',
      { status: 200, body: failing('manifest for x:1 not found') },
    ],
  ])('%s is sandbox_image after one try', async (_, answer) => {
    expect(await outcome(answer)).toEqual([['infra/sandbox_image'], 1]);
  });

  test.each<[string, PullAnswer]>([
    ['too many requests', { status: 500, body: '{"message":"toomanyrequests: rate limit exceeded"}' }],
    ['trouble told inside a stream of status 200', { status: 200, body: failing('unexpected HTTP status: 502') }],
    ['a stream that is no JSON', { status: 200, body: 'oh dear\n' }],
    ['a stream that ends without an image', { status: 200, body: event({ status: 'Downloading' }) }],
  ])('%s is tried three times, and is sandbox_create then', async (_, answer) => {
    expect(await outcome(answer)).toEqual([['infra/sandbox_create'], 3]);
  });

  test('a stream that is cut is tried three times', async () => {
    const [codes, pulls] = await outcome({ status: 200, body: event({ status: 'Downloading' }), isCut: true });
    expect(codes).toHaveLength(1);
    expect(codes[0]).toMatch(/^infra\/(sandbox_create|engine_lost)$/);
    expect(pulls).toBe(3);
  });

  test('a full disk is sandbox_disk at once', async () => {
    expect(await outcome({ status: 200, body: failing('write /x: no space left on device') })).toEqual([
      ['infra/sandbox_disk'],
      1,
    ]);
  });

  test('eight boxes that lack the same image pull it once', async () => {
    expect(await outcome({ status: 404, body: '{"message":"manifest unknown"}', afterMs: 2000 }, 8)).toEqual([
      ['infra/sandbox_image'],
      1,
    ]);
  });
});
