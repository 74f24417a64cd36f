import { spawn } from 'node:child_process';
import { sessionKey } from '@hermes-fleet/shared';
import { afterAll, beforeAll, expect } from 'vitest';
import { docker } from '../setup/borrowed-box.ts';
import { type HermesFleet, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { BARE_IMAGE, BUSYBOX_IMAGE, DEBIAN_IMAGE } from '../setup/images.ts';
import { callTool, say, type Script, turnOf } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: HermesFleet;
beforeAll(async () => {
  fleet = await startHermesFleet();
});
afterAll(async () => await fleet[Symbol.asyncDispose]());

const IMAGES: readonly (readonly [string, string])[] = [
  ['Debian', DEBIAN_IMAGE],
  ['busybox', BUSYBOX_IMAGE],
  ['no shell', BARE_IMAGE],
];

for (const [what, image] of IMAGES)
  verifies(
    ['result:class', 'result:integrity'],
    `a command that kills all that it can does not end its sandbox, in an image with ${what}`,
    async () => {
      const script: Script = (request) =>
        [
          callTool('write_file', { path: 'kept', content: 'kept\n' }),
          callTool('terminal', { command: 'kill -s KILL -1; kill -s KILL 1; echo lived' }),
          callTool('terminal', { command: 'cat kept' }),
          callTool('read_file', { path: 'kept' }),
        ][turnOf(request)] ?? say('done');
      const { verdict, items, close } = await fleet.run(`killer-${what}`, script, { sandbox: { image } });
      expect(verdict).toBe('ok');
      expect(outputsIn(items)[2]).toContain('kept');
      expect(outputsIn(items)[3]).toContain('kept');
      expect(close.body?.sandbox).toBe('removed');
    },
  );

verifies(
  'result:class',
  'a sandbox that goes while a command is being started costs no other model call, whenever that is (S08)',
  async () => {
    const names = Array.from({ length: 8 }, (_, n) => `going-${n}`);
    const ends = await Promise.all(
      names.map(async (name) => {
        const script: Script = () => {
          const box = docker('ps', '-q', '--filter', `label=hermes-fleet.session=${sessionKey(name)}`);
          // Not waited for: it is on its way when the command is.
          spawn('docker', ['rm', '-f', box], { stdio: 'ignore' });
          return callTool('terminal', { command: 'sleep 1234.6' });
        };
        const { verdict, items } = await fleet.run(name, script);
        return `${verdict} ${fleet.model.callsOf(name).length} ${outputsIn(items).length}`;
      }),
    );
    expect(new Set(ends)).toEqual(new Set(['infra/sandbox_lost 1 0']));
  },
);
