import { randomBytes } from 'node:crypto';
import type { FetchedFile, Sandbox } from '@hermes-fleet/worker/sandbox/provider';
import { describe, expect, test } from 'vitest';
import { type Bench, codeOf, deadline, run, text } from './bench.ts';

const io = (): { readonly signal: AbortSignal; readonly deadlineMs: number } => ({
  signal: deadline(),
  deadlineMs: 30_000,
});
const MIB = 1024 * 1024;

async function get(box: Sandbox, paths: readonly string[], maxBytes = 16 * MIB): Promise<FetchedFile[]> {
  return await box.getFiles(paths, { ...io(), maxBytes });
}

const ODD_NAMES = [
  'plain.txt',
  'two words',
  "quote's",
  '"double"',
  '$HOME',
  '`id`',
  '$(id)',
  '-n',
  '--help',
  '*',
  'back\\slash',
  'new\nline',
  'tab\there',
  'ünï漢🙂',
  'semi;colon',
  'a&b|c',
  '#hash',
  '~',
  'deep/er/still.txt',
  '.hidden',
  'trailing ',
];

/** Checks of the way in and out for files. */
export function fileChecks(bench: () => Bench, box: () => Sandbox): void {
  describe('files', () => {
    test('files of odd names come back as they went in', async () => {
      const files = ODD_NAMES.map((path) => ({ path: `odd/${path}`, content: randomBytes(300) }));
      await box().putFiles(files, io());
      const fetched = await get(
        box(),
        files.map(({ path }) => path),
      );
      for (const [index, { path, content }] of files.entries())
        expect({ path, isSame: fetched[index]?.content?.equals(content), size: fetched[index]?.size }).toEqual({
          path,
          isSame: true,
          size: 300,
        });
    });

    test('an empty file is there, and is empty', async () => {
      await box().putFiles([{ path: 'empty', content: Buffer.alloc(0) }], io());
      expect(await get(box(), ['empty'])).toEqual([{ path: 'empty', content: Buffer.alloc(0), size: 0 }]);
    });

    test('a file is replaced whole', async () => {
      await box().putFiles([{ path: 'again', content: Buffer.from('a longer first content') }], io());
      await box().putFiles([{ path: 'again', content: Buffer.from('short') }], io());
      expect((await get(box(), ['again']))[0]?.content?.toString()).toBe('short');
    });

    test('absolute paths are taken as they are', async () => {
      const path = `${box().workdir}/absolute/file`;
      await box().putFiles([{ path, content: Buffer.from('x') }], io());
      expect((await get(box(), [path, 'absolute/file'])).map(({ content }) => content?.toString())).toEqual(['x', 'x']);
    });

    test('ten megabytes come back whole', async () => {
      const content = randomBytes(10 * MIB);
      await box().putFiles([{ path: 'large', content }], io());
      expect((await get(box(), ['large']))[0]?.content?.equals(content)).toBe(true);
    });

    test('what is no regular file has no content, and says why, without waiting for it (S23)', async () => {
      await text(
        box(),
        'mkdir -p kinds/folder; cd kinds; ln -sf /etc/passwd link; ln -sf nowhere dangling; mkfifo pipe 2>/dev/null || mknod pipe p 2>/dev/null; true',
      );
      const paths = [
        'kinds/folder',
        'kinds/link',
        'kinds/dangling',
        'kinds/none',
        'kinds/pipe',
        '/dev/zero',
        'kinds/link/x',
      ];
      for (const file of await get(box(), paths)) {
        expect(file).toMatchObject({ content: undefined, size: 0 });
        expect(file.problem).toMatch(/\w/);
      }
    });

    test('of a sparse file of 100 GB no more is read than was asked for, and its size is told', async () => {
      await text(box(), 'dd if=/dev/zero of=sparse bs=1 count=1 seek=99999999999 2>/dev/null');
      const before = process.memoryUsage.rss();
      const [file] = await get(box(), ['sparse'], 100_000);
      expect([file?.content?.length, file?.size]).toEqual([100_000, 100_000_000_000]);
      expect((process.memoryUsage.rss() - before) / MIB).toBeLessThan(100);
      await text(box(), 'rm -f sparse');
    });

    test('the budget of bytes is for all files together', async () => {
      const files = ['one', 'two', 'three'].map((path) => ({
        path: `budget/${path}`,
        content: Buffer.alloc(1000, path),
      }));
      await box().putFiles(files, io());
      const fetched = await get(
        box(),
        files.map(({ path }) => path),
        1500,
      );
      expect(fetched.map(({ content, size }) => [content?.length, size])).toEqual([
        [1000, 1000],
        [500, 1000],
        [0, 1000],
      ]);
    });

    test("files of a user are that user's", async (context) => {
      const { otherUser = '' } = bench().fixture;
      context.skip(otherUser === '', 'the provider knows no users');
      await run(box(), 'mkdir -p owned && chmod 777 owned');
      await box().putFiles([{ path: 'owned/file', content: Buffer.from('x') }], { ...io(), user: otherUser });
      expect(await text(box(), 'stat -c %u owned/file')).toBe(`${otherUser}\n`);
    });

    test('a file that cannot be written is a typed error that names it', async () => {
      await text(box(), 'mkdir -p taken/by-a-folder');
      const work = box().putFiles([{ path: 'taken/by-a-folder', content: Buffer.from('x') }], io());
      await expect(work).rejects.toThrow(/taken\/by-a-folder/);
      expect(await codeOf(work)).toBe('infra/sandbox_create');
    });

    test('files of a box that is gone are sandbox_lost', async () => {
      await using gone = await bench().box();
      await gone.remove();
      expect(await codeOf(gone.putFiles([{ path: 'x', content: Buffer.from('x') }], io()))).toBe('infra/sandbox_lost');
      expect(await codeOf(get(gone, ['x']))).toBe('infra/sandbox_lost');
    });
  });
}
