import { callTool, type Script, say, textOf, turnOf } from './model-replies.ts';

/** Names the city of the task's sentence to the weather tool, and answers with what the tool said, word for word. */
export const weatherScript: Script = (request) => {
  if (turnOf(request) > 0) {
    const said = textOf(request.messages.findLast((message) => message.role === 'tool'));
    return say(/The weather in [^"\\]*?\./.exec(said)?.[0] ?? said);
  }
  const tool = request.tools?.find(({ function: { name } }) => name.endsWith('get_weather'));
  if (tool === undefined) return say('there is no weather tool');
  const task = textOf(request.messages.findLast((message) => message.role === 'user'));
  return callTool(tool.function.name, { city: /\b(?:in|for|of) ([\p{Lu}][\p{L}-]*)/u.exec(task)?.[1] ?? 'Paris' });
};

/** Repeats the user's last words. */
export const echoScript: Script = ({ messages }) =>
  say(textOf(messages.findLast((message) => message.role === 'user')));
