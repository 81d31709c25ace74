import { ApiError } from "../api/client";

/** What went wrong, with every problem that the server named, its place and its fix. */
export function ErrorNote({ error }: { error: unknown }) {
  if (!error) return null;
  const problems = error instanceof ApiError ? (error.problem.errors ?? []) : [];
  return (
    <div className="note error" role="alert">
      <p>{error instanceof Error ? error.message : String(error)}</p>
      {problems.length > 0 && (
        <ul>
          {problems.map((one, number) => (
            <li key={number}>
              <code>{one.place}</code> {one.problem}
              {one.hint && <span className="dim"> {one.hint}</span>}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

export function Empty({ children }: { children: React.ReactNode }) {
  return <p className="note empty">{children}</p>;
}

export function Loading() {
  return (
    <p className="note empty" role="status">
      Loading …
    </p>
  );
}
