import { useState } from "react";

const CUT_CHARS = 4_000;
// Characters that change what a reader sees without being seen: controls, and those that turn the direction of text.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g;

/** Returns text with every unseen character as its code: what a model or a file wrote cannot dress itself up. */
export function visible(text: string): string {
  return text.replace(UNSEEN, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Text of a stranger: never HTML, cut when it is long, the rest on demand. */
export function Text({ children, className }: { children: string; className?: string }) {
  const [isWhole, setWhole] = useState(false);
  const isCut = children.length > CUT_CHARS && !isWhole;
  return (
    <div className={className}>
      <span className="foreign">{visible(isCut ? children.slice(0, CUT_CHARS) : children)}</span>
      {isCut && (
        <button className="plain" onClick={() => setWhole(true)}>
          show all {children.length.toLocaleString("en")} characters
        </button>
      )}
    </div>
  );
}

/** A short text of a stranger in one line. */
export function Name({ children }: { children: string }) {
  const text = visible(children);
  return (
    <span className="name" title={text.slice(0, 500)}>
      {text.slice(0, 200)}
      {text.length > 200 && "…"}
    </span>
  );
}

export function Json({ value }: { value: unknown }) {
  if (value === null || value === undefined) return <span className="dim">nothing</span>;
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return (
    <pre>
      <Text>{text}</Text>
    </pre>
  );
}

/** A unified diff with coloured lines; any other preview as text. */
export function Diff({ text }: { text: string }) {
  const lines = text.split("\n");
  const isDiff = lines.some((line) => line.startsWith("@@")) || lines.some((line) => line.startsWith("+++"));
  if (!isDiff) return <pre>{<Text>{text}</Text>}</pre>;
  return (
    <pre className="diff">
      {lines.slice(0, 2_000).map((line, number) => (
        <span key={number} className={kindOf(line)}>
          {visible(line)}
          {"\n"}
        </span>
      ))}
      {lines.length > 2_000 && <span className="dim">{lines.length - 2_000} more lines</span>}
    </pre>
  );
}

function kindOf(line: string): string {
  if (line.startsWith("+++") || line.startsWith("---")) return "head";
  if (line.startsWith("@@")) return "place";
  return line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";
}
