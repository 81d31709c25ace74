import { useState } from "react";
import { query } from "../api/client";
import type { AuditEntry } from "../api/types";
import { usePages } from "../parts/fetched";
import { Empty, ErrorNote, Loading } from "../parts/notes";
import { Json, visible } from "../parts/text";
import { Ago } from "../parts/time";
import { linkTo } from "../route";

const SINCE = ["1h", "24h", "7d", "30d", "400d"] as const;

/** Who answered, decided and granted what. Entries are in the order in which they were written. */
export function AuditScreen() {
  const [since, setSince] = useState<(typeof SINCE)[number]>("24h");
  const [session, setSession] = useState("");
  const entries = usePages<AuditEntry>(query("/v1/audit", { since, session, limit: 200 }), { cursor: "after" });
  const found = entries.data ?? [];
  return (
    <>
      <h1>Audit</h1>
      <p className="controls">
        <label>
          in the last{" "}
          <select value={since} onChange={(event) => setSince(event.target.value as typeof since)}>
            {SINCE.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <label>
          session <input value={session} placeholder="sess_…" onChange={(event) => setSession(event.target.value.trim())} />
        </label>
        <button disabled={!found.length} onClick={() => save(found)}>
          Save as JSON lines
        </button>
      </p>
      <p className="dim">
        <code>soong audit verify</code> checks that no entry was changed or taken away.
      </p>
      <ErrorNote error={entries.error} />
      {entries.isPending && <Loading />}
      {entries.data && found.length === 0 && <Empty>Nothing was answered or decided in this time.</Empty>}
      <ul className="audit">
        {found.map((entry) => (
          <li key={entry.digest}>
            <details>
              <summary>
                <Ago at={entry.time} /> <strong>{entry.kind}</strong> {summary(entry)}
              </summary>
              {entry.session && (
                <p>
                  <a href={linkTo("sessions", entry.session)}>{entry.session}</a>
                </p>
              )}
              <Json value={entry.data} />
              <p className="dim">
                {entry.chain}, number {entry.number}, {entry.digest}
              </p>
            </details>
          </li>
        ))}
      </ul>
      {entries.more && <button onClick={entries.more}>More</button>}
    </>
  );
}

function summary(entry: AuditEntry): string {
  const named = ["choice", "author", "tool", "shown", "principal", "channel", "reason"];
  const data = entry.data as Record<string, unknown>;
  const words = named.map((name) => data[name]).filter((value): value is string => typeof value === "string" && value !== "");
  return visible(words.join(" · ")).slice(0, 300);
}

function save(entries: readonly AuditEntry[]): void {
  const text = entries.map((entry) => `${JSON.stringify(entry)}\n`).join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/x-ndjson" }));
  link.download = "audit.jsonl";
  link.click();
  URL.revokeObjectURL(link.href);
}
