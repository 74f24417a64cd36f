import { afterAll, beforeAll, expect } from 'vitest';
import { grantOf, type HermesFleet, messagesIn, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { McpTestServer } from '../setup/mcp-server.ts';
import { callTool, say, turns } from '../setup/model-replies.ts';
import { weatherScript } from '../setup/model-scripts.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: HermesFleet;

beforeAll(async () => {
  fleet = await startHermesFleet({ provider: 'local' });
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

verifies(
  ['mcp:granted', 'hermes:one-pin'],
  'without an engine Hermes works in local processes, and the result says that nothing isolated it',
  async () => {
    await using server = await McpTestServer.start();
    const [weather, coding] = await Promise.all([
      fleet.run(
        'local-weather',
        weatherScript,
        { tool_accesses: [grantOf(server, 'weather')] },
        { input: 'Use the tool for Lima.' },
      ),
      fleet.run(
        'local-coding',
        turns([
          callTool('write_file', { path: 'program.py', content: 'print(6 * 7)\n' }),
          callTool('terminal', { command: 'python3 program.py' }),
          say('done'),
        ]),
        { collect: { files: ['program.py'] } },
      ),
    ]);
    expect([weather.verdict, coding.verdict]).toEqual(['ok', 'ok']);
    expect(messagesIn(weather.items)).toEqual([server.weatherOf('Lima')]);
    expect(outputsIn(coding.items)[1]).toContain('42');
    for (const { activation } of [weather, coding])
      expect(activation.body).toMatchObject({
        integrity: 'claimed',
        hermes_version: '0.19.0',
        gaps: [{ code: 'no_isolation' }],
      });
    expect(coding.close.body?.collected?.files[0]?.text).toBe('print(6 * 7)\n');
    expect(fleet.model.refusedStreams).toBe(0);
  },
);

verifies(
  ['mcp:required-down', 'mcp:secrets'],
  'a required server that is down ends a local activation before the first model call',
  async () => {
    await using bad = await McpTestServer.start({ mode: 'unauthorized', authorization: 'Bearer MARKER-LOCAL-44d0' });
    const { verdict, activation } = await fleet.run('local-down', say('never'), {
      tool_accesses: [grantOf(bad, 'shut')],
    });
    expect(verdict).toBe('infra/mcp_bad');
    expect(activation.body?.message).toContain('"shut"');
    expect(fleet.model.callsOf('local-down')).toHaveLength(0);
    expect(fleet.workers[0]?.output()).not.toContain('MARKER-');
  },
);
