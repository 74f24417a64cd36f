import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import type Docker from 'dockerode';
import tar from 'tar-stream';
import { DEBIAN_IMAGE } from './images.ts';

export const REPOSITORY = '/repo';
export const RUN_TESTS = 'python3 -m unittest 2>&1';

const STOCK = `"""What is in the warehouse."""


class Stock:
    def __init__(self):
        self._pieces = {}

    def add(self, article, pieces):
        self._pieces[article] = pieces

    def take(self, article, pieces):
        self._pieces[article] = self._pieces.get(article, 0) - pieces

    def of(self, article):
        return self._pieces.get(article, 0)
`;

const TESTS = `import unittest

from warehouse.report import report
from warehouse.stock import Stock


class StockTest(unittest.TestCase):
    def test_what_is_added_twice_is_there_twice(self):
        stock = Stock()
        stock.add("bolt", 2)
        stock.add("bolt", 3)
        self.assertEqual(stock.of("bolt"), 5)

    def test_no_more_can_be_taken_than_is_there(self):
        stock = Stock()
        stock.add("nut", 1)
        with self.assertRaises(ValueError):
            stock.take("nut", 2)

    def test_a_report_has_a_line_for_each_article(self):
        stock = Stock()
        stock.add("nut", 1)
        stock.add("bolt", 2)
        self.assertEqual(report(stock, ["bolt", "nut"]), "bolt: 2\\nnut: 1\\n")
`;

const FILES: Readonly<Record<string, string>> = {
  'warehouse/__init__.py': '',
  'warehouse/stock.py': STOCK,
  'tests/__init__.py': '',
  'tests/test_warehouse.py': TESTS,
  '.gitignore': '__pycache__/\n',
};

const SET_UP = `cd ${REPOSITORY} && git init -q && git config user.name t && git config user.email t@t && git add -A && git commit -qm first`;

/** Makes an image with a git repository of which the tests fail, where the engine does not have it; answers its name. */
export async function makeCodingImage(docker: Docker): Promise<string> {
  const digest = createHash('sha256')
    .update(JSON.stringify([FILES, SET_UP]))
    .digest('hex')
    .slice(0, 12);
  const [repo, tag] = ['hermes-fleet-test', `coding-${digest}`];
  const name = `${repo}:${tag}`;
  const isThere = await docker
    .getImage(name)
    .inspect()
    .then(
      () => true,
      () => false,
    );
  if (isThere) return name;
  const container = await docker.createContainer({ Image: DEBIAN_IMAGE, Cmd: ['sh', '-c', SET_UP] });
  try {
    const pack = tar.pack();
    for (const [file, text] of Object.entries(FILES)) pack.entry({ name: `${REPOSITORY.slice(1)}/${file}` }, text);
    pack.finalize();
    await container.putArchive(Readable.from(pack), { path: '/' });
    await container.start();
    const { StatusCode: code } = (await container.wait()) as { readonly StatusCode: number };
    if (code !== 0) throw new Error(`the repository of image ${name} cannot be made (${code})`);
    await container.commit({ repo, tag });
  } finally {
    await container.remove({ force: true });
  }
  return name;
}
