import { FleetError, type ObservationGap } from '@hermes-fleet/shared';
import type { Sandbox } from '../sandbox/provider.ts';

/** What a task sandbox is and has, asked once per session: it shapes the prompt and the tools that are offered. */
export interface SandboxProbe {
  readonly text: string;
  readonly hasPython: boolean;
  /** A grep that can search a tree (ripgrep, or GNU grep); busybox' finds nothing and says nothing. */
  readonly hasSearch: boolean;
}

const SCRIPT = [
  `printf '%s\\n' "$(uname -s 2>/dev/null) $(uname -r 2>/dev/null)"`,
  // A uid without a name: busybox prints the number, and fails all the same.
  `u=$(id -un 2>/dev/null) || u=$(id -u); printf '%s\\n' "$u"`,
  `printf '%s\\n' "$HOME"`,
  `command -v python3 >/dev/null 2>&1 && echo yes || echo no`,
  `{ command -v rg || grep --version 2>/dev/null | grep -q 'GNU grep'; } >/dev/null 2>&1 && echo yes || echo no`,
  // What every file tool is made of.
  `for tool in cat mkdir mv wc head tail sed find grep; do command -v "$tool" >/dev/null 2>&1 || echo "missing $tool"; done`,
].join('\n');

/** @throws FleetError `infra/sandbox_no_shell` when commands cannot be run in it */
export async function probeSandbox(
  sandbox: Sandbox,
  options: { readonly user: string | undefined; readonly signal: AbortSignal; readonly deadlineMs: number },
): Promise<SandboxProbe> {
  const { path, pathSuffix } = sandbox.shell;
  const script = pathSuffix === undefined ? SCRIPT : `PATH=$PATH:${pathSuffix}; export PATH\n${SCRIPT}`;
  const result = await sandbox.exec({
    argv: [path, '-c', script],
    user: options.user,
    workdir: sandbox.workdir,
    signal: options.signal,
    maxBytes: 65_536,
    deadlineMs: options.deadlineMs,
  });
  const [system = '', user = '', home = '', python, search, ...missing] = result.stdout
    .toString()
    .trimEnd()
    .split('\n');
  if (result.exitCode !== 0 || search === undefined)
    throw new FleetError(
      'infra/sandbox_no_shell',
      `the shell of the sandbox does not work (exit ${result.exitCode}: ${result.stderr.toString().trim().slice(0, 500)})`,
    );
  if (missing.length > 0)
    throw new FleetError(
      'infra/sandbox_no_shell',
      `the sandbox lacks POSIX tools: ${missing.map((line) => line.replace('missing ', '')).join(', ')}`,
    );
  const text = [
    `  OS: ${system.trim()}`,
    `  User: ${user}`,
    `  Home: ${home}`,
    `  Working directory: ${sandbox.workdir}`,
  ].join('\n');
  return { text, hasPython: python === 'yes', hasSearch: search === 'yes' };
}

/** Tools that would not work there, and are therefore not offered. */
export function disabledTools(probe: SandboxProbe): string[] {
  return [...(probe.hasPython ? [] : ['execute_code']), ...(probe.hasSearch ? [] : ['search_files'])];
}

export function probeGaps(probe: SandboxProbe): ObservationGap[] {
  const gaps: ObservationGap[] = [];
  if (!probe.hasPython) gaps.push({ code: 'tool_not_offered', detail: 'execute_code: the sandbox has no python3' });
  if (!probe.hasSearch)
    gaps.push({ code: 'tool_not_offered', detail: 'search_files: the sandbox has neither ripgrep nor GNU grep' });
  return gaps;
}
