import { randomBytes } from 'node:crypto';
import { FleetError } from '@hermes-fleet/shared';
import { longTimer } from '../cancellation.ts';
import type { Sandbox, SandboxProcess } from '../sandbox/provider.ts';
import { quote } from './shell-wrapper.ts';

export interface ResidentCommand {
  readonly command: string;
  readonly cwd: string;
  readonly stdin: Buffer | undefined;
  readonly timeoutMs: number;
  readonly maxBytes: number;
  readonly env: Readonly<Record<string, string>>;
}

export interface ResidentResult {
  readonly output: Buffer;
  readonly code: number;
}

/**
 * One long-lived shell in the sandbox for the many small commands that Hermes makes for a file tool: a round trip on a
 * pipe in place of an exec. Never for the model's own commands: they may leave a child behind that holds the stream.
 */
export class ResidentShell {
  readonly #process: SandboxProcess;
  readonly #shell: string;
  #output: Buffer[] = [];
  #size = 0;
  #onOutput: () => void = () => undefined;
  #isBroken = false;

  private constructor(process: SandboxProcess, shell: string, lines: { listener: (chunk: Buffer) => void }) {
    this.#process = process;
    this.#shell = shell;
    lines.listener = (chunk) => {
      this.#output.push(chunk);
      this.#size += chunk.length;
      this.#onOutput();
    };
    void process.ended.then(() => {
      this.#isBroken = true;
      this.#onOutput();
    });
  }

  static async open(
    sandbox: Sandbox,
    options: {
      readonly user: string | undefined;
      readonly env: Readonly<Record<string, string>>;
      readonly signal: AbortSignal;
    },
  ): Promise<ResidentShell | undefined> {
    if (sandbox.openProcess === undefined) return undefined;
    const { path, pathSuffix } = sandbox.shell;
    const lines = { listener: (_chunk: Buffer): void => undefined };
    const process = await sandbox.openProcess({
      argv: [path],
      user: options.user,
      workdir: sandbox.workdir,
      env: options.env,
      signal: options.signal,
      onOutput: (chunk) => lines.listener(chunk),
    });
    const shell = new ResidentShell(process, path, lines);
    if (pathSuffix !== undefined) await process.write(Buffer.from(`PATH=$PATH:${pathSuffix}; export PATH\n`));
    return shell;
  }

  get isBroken(): boolean {
    return this.#isBroken;
  }

  /** @throws FleetError `infra/sandbox_exec` when the shell is gone; undefined on time-out or too much output, after which it is useless */
  async run(command: ResidentCommand): Promise<ResidentResult | undefined> {
    const mark = `__HF_${randomBytes(12).toString('hex')}__`;
    const exports = Object.entries(command.env).map(([name, value]) => `export ${name}=${quote(value)}`);
    const inner = [...exports, `cd -- ${quote(command.cwd)} || exit 126`, command.command].join('\n');
    const end = `printf '\\n${mark}%s\\n' "$?"`;
    this.#output = [];
    this.#size = 0;
    const child = `${quote(this.#shell)} -c ${quote(inner)}`;
    const script =
      command.stdin === undefined
        ? [Buffer.from(`${child} </dev/null 2>&1; ${end}\n`)]
        : [
            Buffer.from(`head -c ${command.stdin.length} <<'${mark}' | ${child} 2>&1; ${end}\n`),
            command.stdin,
            Buffer.from(`\n${mark}\n`),
          ];
    await this.#process.write(Buffer.concat(script));
    const result = await this.#until(Buffer.from(`\n${mark}`), command);
    if (result === undefined) this.close();
    return result;
  }

  /** Ends the shell; a command that is still running in it is not killed by this. */
  close(): void {
    this.#isBroken = true;
    this.#process.endInput();
    this.#process.destroy();
  }

  async #until(marker: Buffer, command: ResidentCommand): Promise<ResidentResult | undefined> {
    let isLate = false;
    const timer = longTimer(command.timeoutMs, () => {
      isLate = true;
      this.#onOutput();
    });
    try {
      for (;;) {
        const output =
          this.#output.length === 1 && this.#output[0] !== undefined ? this.#output[0] : Buffer.concat(this.#output);
        this.#output = [output];
        const at = output.lastIndexOf(marker);
        const line = at < 0 ? -1 : output.indexOf(10, at + 1);
        if (line >= 0)
          return { output: output.subarray(0, at), code: Number(output.subarray(at + marker.length, line).toString()) };
        if (isLate || this.#size > command.maxBytes) return undefined;
        if (this.#isBroken) throw new FleetError('infra/sandbox_exec', 'the resident shell of the sandbox is gone');
        await new Promise<void>((resolve) => (this.#onOutput = resolve));
      }
    } finally {
      timer.clear();
      this.#onOutput = () => undefined;
    }
  }
}
