/**
 * Names of Hermes' own toolsets; a grant of such a name would be shadowed by the toolset without a word. Generated from
 * the pinned Hermes by `test/setup/generate.ts` and checked fresh by a test.
 *
 * @see hermes-agent 0.19.0 toolsets.py `TOOLSETS`
 */
export const HERMES_TOOLSETS: readonly string[] = [
  'browser',
  'clarify',
  'code_execution',
  'coding',
  'computer_use',
  'context_engine',
  'cronjob',
  'debugging',
  'delegation',
  'discord',
  'discord_admin',
  'feishu_doc',
  'feishu_drive',
  'file',
  'hermes-acp',
  'hermes-api-server',
  'hermes-bluebubbles',
  'hermes-cli',
  'hermes-cron',
  'hermes-dingtalk',
  'hermes-discord',
  'hermes-email',
  'hermes-feishu',
  'hermes-gateway',
  'hermes-homeassistant',
  'hermes-matrix',
  'hermes-mattermost',
  'hermes-qqbot',
  'hermes-signal',
  'hermes-slack',
  'hermes-sms',
  'hermes-telegram',
  'hermes-webhook',
  'hermes-wecom',
  'hermes-wecom-callback',
  'hermes-weixin',
  'hermes-whatsapp',
  'hermes-yuanbao',
  'homeassistant',
  'image_gen',
  'kanban',
  'memory',
  'project',
  'safe',
  'search',
  'session_search',
  'skills',
  'spotify',
  'terminal',
  'todo',
  'tts',
  'video',
  'video_gen',
  'vision',
  'web',
  'x_search',
  'yuanbao',
];

const known: ReadonlySet<string> = new Set(HERMES_TOOLSETS);

/** Whether a name is one of {@link HERMES_TOOLSETS}, or of the family `hermes-…` that Hermes keeps for itself. */
export function isHermesToolset(name: string): boolean {
  return known.has(name) || name.startsWith('hermes-');
}
