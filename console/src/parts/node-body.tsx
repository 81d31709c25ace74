import type { RunEvent, RunNode } from "../api/types";
import { Json, Text, visible } from "./text";

type Fields = Record<string, unknown>;

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function entriesOf(value: unknown): Fields[] {
  return Array.isArray(value) ? value.filter(isFields) : [];
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** What a node says, by its kind; whatever has no form of its own is shown as it is stored. */
export function NodeBody({ node, decisions }: { node: RunNode; decisions: ReadonlyMap<string, Decision> }) {
  const payload = node.payload as Fields;
  switch (node.kind) {
    case "system":
      return (
        <details>
          <summary>instructions</summary>
          <Json value={payload.text ?? payload} />
        </details>
      );
    case "user":
      return <Texts payload={payload} />;
    case "assistant":
      return isFields(payload.message) ? <Answer message={payload.message} decisions={decisions} /> : <Json value={payload} />;
    case "tool_result":
      return <ToolResult payload={payload} />;
    default:
      return <Json value={Object.fromEntries(Object.entries(payload).filter(([name]) => name !== "v"))} />;
  }
}

function Texts({ payload }: { payload: Fields }) {
  const texts = Array.isArray(payload.texts) ? payload.texts.map(textOf).filter(Boolean) : [];
  if (texts.length === 0) return <Json value={payload} />;
  return (
    <>
      {texts.map((text, number) => (
        <Text key={number}>{text}</Text>
      ))}
    </>
  );
}

function Answer({ message, decisions }: { message: Fields; decisions: ReadonlyMap<string, Decision> }) {
  const usage = isFields(message.usage) ? message.usage : {};
  const tokens = [usage.input_tokens, usage.output_tokens].map((count) => (typeof count === "number" ? count : 0));
  return (
    <>
      {entriesOf(message.parts).map((part, number) => (
        <AnswerPart key={number} part={part} decisions={decisions} />
      ))}
      {tokens.some((count) => count > 0) && (
        <p className="dim">
          {visible(textOf(message.model_name))} · {tokens[0]?.toLocaleString("en")} tokens read, {tokens[1]?.toLocaleString("en")} written
        </p>
      )}
    </>
  );
}

/** Arguments as a value: some providers keep them as the text that the model wrote. */
function unpacked(args: unknown): unknown {
  if (typeof args !== "string") return args;
  try {
    return JSON.parse(args);
  } catch {
    return args;
  }
}

function AnswerPart({ part, decisions }: { part: Fields; decisions: ReadonlyMap<string, Decision> }) {
  switch (part.part_kind) {
    case "text":
      return <Text>{textOf(part.content)}</Text>;
    case "thinking":
      return (
        <details>
          <summary>thinking</summary>
          <Text>{textOf(part.content)}</Text>
        </details>
      );
    case "tool-call": {
      const decision = decisions.get(textOf(part.tool_call_id));
      return (
        <section className="call">
          <p>
            <strong>{visible(textOf(part.tool_name).replaceAll("__", "."))}</strong>
            {decision && <DecisionNote decision={decision} />}
          </p>
          <Json value={unpacked(part.args)} />
        </section>
      );
    }
    default:
      return <Json value={part} />;
  }
}

function ToolResult({ payload }: { payload: Fields }) {
  const { content, data, error, artifacts, metadata, tool, is_error: isError, summary } = payload;
  const blocks = entriesOf(content);
  return (
    <>
      <p className={isError ? "note error" : ""}>
        <strong>{visible(textOf(tool))}</strong> {visible(textOf(summary))}
      </p>
      {blocks.map((block, number) =>
        typeof block.text === "string" ? (
          <pre key={number}>
            <Text>{block.text}</Text>
          </pre>
        ) : (
          <Json key={number} value={block} />
        ),
      )}
      <details>
        <summary>data</summary>
        <Json value={{ data, error, artifacts, metadata }} />
      </details>
    </>
  );
}

/** Who let a call pass or not, as the run's log has it. */
export interface Decision {
  choice: string;
  author: string;
  principal: string;
  channel: string;
  reason: string;
}

/** Returns the decisions of a log by tool call. */
export function decisionsOf(events: readonly RunEvent[]): Map<string, Decision> {
  const found = new Map<string, Decision>();
  for (const event of events) {
    const data = event.data as Fields;
    const call = textOf(data.tool_call_id);
    if (!call || !event.type.endsWith("permission_decided")) continue;
    const [choice, author, principal, channel, reason] = ["choice", "author", "principal", "channel", "reason"].map((name) => textOf(data[name]));
    found.set(call, { choice: choice ?? "", author: author ?? "", principal: principal ?? "", channel: channel ?? "", reason: reason ?? "" });
  }
  return found;
}

function DecisionNote({ decision }: { decision: Decision }) {
  const by = [decision.author, decision.principal, decision.channel].filter(Boolean).map(visible).join(", ");
  return (
    <span className={decision.choice === "deny" ? "status failed" : "status completed"}>
      {" "}
      {decision.choice.replaceAll("_", " ")} <span className="dim">by {by}</span>
      {decision.reason && ` “${visible(decision.reason)}”`}
    </span>
  );
}
