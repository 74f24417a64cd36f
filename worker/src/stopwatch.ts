/** Milliseconds per stage of a command, for its result. */
export class Stopwatch {
  readonly stages: Record<string, number> = {};
  readonly #begun = performance.now();

  async time<T>(stage: string, work: () => Promise<T>): Promise<T> {
    const begun = performance.now();
    try {
      return await work();
    } finally {
      this.stages[stage] = Math.round(performance.now() - begun);
    }
  }

  /** All stages so far, and the sum of time. */
  read(): Record<string, number> {
    return { ...this.stages, total: Math.round(performance.now() - this.#begun) };
  }
}
