// Reads UI message streams with the real AI SDK: each line in is a JSON list of cases, each line out a
// list of messages.
// A case is {version, responses: [text of server-sent events]}: each response goes on with the message
// that the one before it has left, as useChat does.
import { createInterface } from "node:readline";

async function readResponse(ai, text, message, errors) {
  const bytes = new Response(text).body;
  const parsed = ai.parseJsonEventStream({ stream: bytes, schema: ai.uiMessageChunkSchema });
  const chunks = parsed.pipeThrough(
    new TransformStream({
      transform(result, controller) {
        if (!result.success) {
          throw new Error(`refused: ${JSON.stringify(result.rawValue)}: ${result.error}`);
        }
        controller.enqueue(result.value);
      },
    }),
  );
  const states = ai.readUIMessageStream({
    message,
    stream: chunks,
    onError: (error) => errors.push(String(error.message ?? error)),
  });
  for await (const state of states) message = state;
  return message;
}

for await (const line of createInterface({ input: process.stdin })) {
  const answers = [];
  for (const { version, responses } of JSON.parse(line)) {
    const ai = await import(`ai${version}`);
    const errors = [];
    let message;
    for (const text of responses) message = await readResponse(ai, text, message, errors);
    answers.push({ message: message ?? null, errors });
  }
  process.stdout.write(JSON.stringify(answers) + "\n");
}
