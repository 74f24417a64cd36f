import { TOOLBOX } from '../sandbox/toolbox.ts';

/** Quotes a text for any POSIX shell. */
export function quote(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** Folder of one session in its sandbox: the environment between commands, and the epoch of the newest owner. */
export function stateFolder(sessionKey: string, temporary = '/tmp'): string {
  // It stands unquoted in shell text.
  const root = /^[\w./-]+$/.test(temporary) ? temporary : '/tmp';
  return `${root}/.hf-${sessionKey.slice(0, 12)}`;
}

export interface WrapOptions {
  readonly command: string;
  readonly cwd: string;
  readonly stateFolder: string;
  /** Printed before exit code and directory, when the command has ended. */
  readonly marker: string;
  /** In the environment of everything that the command starts: `HF_ACT`. */
  readonly activation: string;
  /** The same for this one command: `HF_EXEC`. */
  readonly exec: string;
  readonly epoch: string;
  readonly pathSuffix: string | undefined;
  /** Whether the end of stdin kills all that bears the command's mark. Not with a stdin of its own. */
  readonly hasSwitch: boolean;
}

/**
 * A plain busybox' grep sees nothing behind the first NUL of a file: the one that a box was given is built otherwise.
 */
const FIND_GREP = `__hf_g=grep; [ -x ${TOOLBOX}/grep ] && __hf_g=${TOOLBOX}/grep`;

/** Kills every process whose environment holds `mark`, several times over: a fork may race the first pass. */
export function killByMark(mark: string, except: string): string {
  return `${FIND_GREP}; for k in 1 2 3; do for f in $($__hf_g -ls ${quote(mark)} /proc/[0-9]*/environ 2>/dev/null); do p=\${f#/proc/}; p=\${p%/environ}; [ "$p" = "${except}" ] || kill -s KILL "$p" 2>/dev/null; done; done`;
}

/**
 * The shell text around one command of the agent. Each line is there because of something that was seen to go wrong:
 * stderr joins stdout, or the marker overtakes it; the marker comes from a trap, so that `exit` in the command cannot
 * skip it, nor `set -e` end it half-way; marks are exported after the saved environment, or a command would bear the mark of an older one, as does the provider's own, which is not saved; a lower
 * epoch than the folder's is refused, so that a worker that was frozen cannot act on an old permission.
 */
export function wrapCommand(options: WrapOptions): string {
  const { command, cwd, marker, activation, exec, epoch, pathSuffix, hasSwitch } = options;
  const folder = options.stateFolder;
  const lines = ['exec 2>&1', `[ -d ${folder} ] || mkdir -p -m 700 ${folder}`];
  if (hasSwitch) {
    lines.push(
      'exec 3<&0 </dev/null',
      `(read -r _ <&3; me=$(exec sh -c 'echo $PPID'); ${killByMark(`HF_EXEC=${exec}`, '$me')}) >/dev/null 2>&1 &`,
      '__hf_w=$!',
      'exec 3<&-',
    );
  } else lines.push('__hf_w=');
  const end = (code: string, directory: string): string => `printf '\\n${marker}%s:%s\\n' "${code}" "${directory}"`;
  lines.push(
    `__hf_e=0; [ -f ${folder}/epoch ] && read -r __hf_e <${folder}/epoch`,
    `[ "$__hf_e" -gt ${epoch} ] 2>/dev/null && { ${end('125', '$PWD')}; exit 125; }`,
    `[ -f ${folder}/env ] && . ${folder}/env >/dev/null 2>&1`,
    ...(pathSuffix === undefined
      ? []
      : [`case ":$PATH:" in *:${pathSuffix}:*) ;; *) PATH=$PATH:${pathSuffix} ;; esac`]),
    `export HF_ACT=${activation} HF_EXEC=${exec}`,
    `cd -- ${quote(cwd)} 2>/dev/null || cd ${quote(cwd)} || { ${end('126', '$PWD')}; exit 126; }`,
    `trap '{ __hf_c=$?; set +eux; } 2>/dev/null; trap - EXIT; [ -n "$__hf_w" ] && { kill -s KILL $__hf_w; wait $__hf_w; } 2>/dev/null; (umask 077; unset HF_KILL; export -p >${folder}/env.$$ && mv -f ${folder}/env.$$ ${folder}/env) 2>/dev/null; printf "\\n${marker}%s:%s\\n" "$__hf_c" "$(pwd -P)"; exit $__hf_c' EXIT`,
    `eval ${quote(command)}`,
  );
  return lines.join('\n');
}

/**
 * Shell text that makes this owner the newest of the session, and ends what an earlier run of the same activation left
 * running. Background processes of activations that have ended stay: later ones find the sandbox as it was left.
 */
export function takeOver(options: {
  readonly stateFolder: string;
  readonly epoch: string;
  readonly runs: string;
  readonly activation: string;
}): string {
  const { stateFolder: folder, epoch, runs, activation } = options;
  return [
    `mkdir -p ${folder} && chmod 700 ${folder}`,
    `e=0; [ -f ${folder}/epoch ] && read -r e <${folder}/epoch`,
    `[ "$e" -gt ${epoch} ] 2>/dev/null && exit 125`,
    `printf '%s\\n' ${epoch} >${folder}/epoch`,
    FIND_GREP,
    `for f in $($__hf_g -ls 'HF_ACT=${runs}' /proc/[0-9]*/environ 2>/dev/null); do $__hf_g -qs 'HF_ACT=${activation}' "$f" || { p=\${f#/proc/}; kill -s KILL "\${p%/environ}" 2>/dev/null; }; done`,
    'exit 0',
  ].join('\n');
}
