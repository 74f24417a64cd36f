import { callTool, type Script, say, textOf, turns } from '../setup/model-replies.ts';

/** What the coding tasks ask for, with the fault that the scripted model makes first. */
const PROGRAMS = {
  primes: {
    broken:
      'def primes(n):\n    return [k for k in range(2, n) if all(k % d for d in range(2, k)]\n\nprint(sum(primes(100)))\n',
    fixed:
      'def primes(n):\n    return [k for k in range(2, n) if all(k % d for d in range(2, k))]\n\nprint(sum(primes(100)))\n',
  },
  words: {
    broken:
      "text = 'the cat and the hat and the bat'\ncounts = {}\nfor word in text.split():\n    counts[word] += 1\nprint(counts['the'])\n",
    fixed:
      "text = 'the cat and the hat and the bat'\ncounts = {}\nfor word in text.split():\n    counts[word] = counts.get(word, 0) + 1\nprint(counts['the'])\n",
  },
  roman: {
    broken:
      "VALUES = dict(I=1, V=5, X=10, L=50, C=100, D=500, M=1000)\ndef value(s):\n    return sum(VALUES[c] for c in s)\nassert value('MCMXCIV') == 1994, value('MCMXCIV')\n",
    fixed:
      "VALUES = dict(I=1, V=5, X=10, L=50, C=100, D=500, M=1000)\ndef value(s):\n    total = 0\n    for c, after in zip(s, s[1:] + ' '):\n        total += -VALUES[c] if VALUES[c] < VALUES.get(after, 0) else VALUES[c]\n    return total\nassert value('MCMXCIV') == 1994, value('MCMXCIV')\nprint(value('MCMXCIV'))\n",
  },
} as const;

export const PROGRAM = 'program.py';

/** Writes a program that fails, runs it, reads the error, mends it, runs it again, and says what it printed. */
const coder = ({ broken, fixed }: { readonly broken: string; readonly fixed: string }): Script =>
  turns([
    callTool('write_file', { path: PROGRAM, content: broken }),
    callTool('terminal', { command: `python3 ${PROGRAM}` }),
    callTool('write_file', { path: PROGRAM, content: fixed }),
    callTool('terminal', { command: `python3 ${PROGRAM}` }),
    ({ messages }) => {
      const said = textOf(messages.findLast(({ role }) => role === 'tool'));
      return say(`The program prints ${/"output":\s*"([^"\\]*)/.exec(said)?.[1] ?? said}.`);
    },
  ]);

export const scripts: Readonly<Record<string, Script>> = Object.fromEntries(
  Object.entries(PROGRAMS).map(([name, program]) => [`coder-${name}`, coder(program)]),
);
