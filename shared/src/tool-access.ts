import { z } from 'zod';
import { isHermesToolset } from './toolsets.ts';

/** Gym's rule for the name of a grant (nemo-gym 0.7.0, `ToolAccess.name`). */
const GrantName = z
  .string()
  .regex(
    /^[A-Za-z0-9][A-Za-z0-9._-]*$/,
    'a grant name is letters, digits, ".", "_" and "-", and begins with a letter or digit',
  )
  .max(128);
const HttpUrl = z.url({ protocol: /^https?$/, error: 'must be an http or https URL' });
const Headers = z.record(
  z
    .string()
    .max(256)
    .regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, 'must be a header name'),
  z
    .string()
    .max(16_384)
    .regex(/^[\t\x20-\x7E\x80-\xFF]*$/, 'must be one line of Latin-1 text'),
);

const McpAccess = z.strictObject({
  kind: z.literal('mcp'),
  name: GrantName,
  /** Whether an activation must fail when this server cannot be had. */
  required: z.boolean(),
  connection: z.discriminatedUnion('transport', [
    z.strictObject({
      transport: z.literal('streamable_http'),
      url: HttpUrl,
      /** Sent with every request; stays in the worker and in the session's own payload, deleted at close. */
      headers: Headers.default({}),
    }),
    z.strictObject({
      transport: z.literal('stdio'),
      command: z.string().min(1),
      args: z.array(z.string()).default([]),
      env: z.record(z.string(), z.string()).default({}),
      cwd: z.string().optional(),
    }),
  ]),
});

const DirectHttpAccess = z.strictObject({
  kind: z.literal('direct_http'),
  name: GrantName,
  required: z.boolean(),
  base_url: HttpUrl,
  cookies: z.record(z.string(), z.string()).default({}),
  headers: Headers.default({}),
});

/**
 * Permission for a session to use one tool server, in Gym's shape. The fleet connects `mcp` over `streamable_http`;
 * the other kinds are known, so that an optional one is left out with a gap and a required one is refused by name.
 *
 * @see nemo-gym 0.7.0 `ToolAccess`
 */
export const ToolAccess = z.discriminatedUnion('kind', [McpAccess, DirectHttpAccess]);
export type ToolAccess = z.infer<typeof ToolAccess>;

/** A grant that the fleet can serve. */
export type McpGrant = z.infer<typeof McpAccess> & { connection: { transport: 'streamable_http' } };

export function isMcpGrant(access: ToolAccess): access is McpGrant {
  return access.kind === 'mcp' && access.connection.transport === 'streamable_http';
}

/** Hermes' cleaning of a server name before it becomes part of a tool name (hermes-agent 0.19.0 tools/mcp_tool.py). */
export function hermesServerName(name: string): string {
  return name.replaceAll(/[^A-Za-z0-9_]/g, '_');
}

/** The first reason why these grants cannot be given, naming the grant; undefined when they can. */
export function refusalOf(
  accesses: readonly ToolAccess[],
): { index: number; unsupported: boolean; reason: string } | undefined {
  const byCleanName = new Map<string, string>();
  for (const [index, access] of accesses.entries()) {
    const refuse = (reason: string, unsupported = false) => ({
      index,
      unsupported,
      reason: `grant "${access.name}" ${reason}`,
    });
    if (!isMcpGrant(access)) {
      const kind = access.kind === 'mcp' ? `mcp over ${access.connection.transport}` : access.kind;
      if (access.required) return refuse(`is required, and its kind (${kind}) is not supported`, true);
      continue;
    }
    const clean = hermesServerName(access.name);
    if (isHermesToolset(access.name) || isHermesToolset(clean)) return refuse('has the name of a Hermes toolset');
    const other = byCleanName.get(clean);
    if (other !== undefined) return refuse(`and grant "${other}" have one name for Hermes (${clean})`);
    byCleanName.set(clean, access.name);
  }
  return undefined;
}
