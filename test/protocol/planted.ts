/** A change to the source of the scripts that must be noticed. */
export interface Planted {
  readonly edit: (lua: string) => string;
  /** Whether the text to change was in any script. */
  readonly wasApplied: () => boolean;
}

export function planted(from: string, to: string): Planted {
  let isApplied = false;
  return {
    edit: (lua) => {
      isApplied ||= lua.includes(from);
      return lua.replaceAll(from, () => to);
    },
    wasApplied: () => isApplied,
  };
}
