import { useEffect, useState } from "react";

const KEYS = [
  ["j, k", "next, previous question or step"],
  ["x", "select the question"],
  ["a", "allow once"],
  ["s", "allow for this session"],
  ["d", "deny, with a reason"],
  ["Esc", "close"],
  ["?", "this help"],
] as const;

/** Calls `onKey` for keys that are typed outside of fields and without modifiers. */
export function useKeys(onKey: (key: string) => boolean): void {
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select")) return;
      if (onKey(event.key)) event.preventDefault();
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, [onKey]);
}

export function KeyHelp() {
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if ((event.target as HTMLElement).closest("input, textarea, select")) return;
      if (event.key === "?") setOpen((open) => !open);
      if (event.key === "Escape") setOpen(false);
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
  if (!isOpen) return null;
  return (
    <div className="dialog" role="dialog" aria-label="Keys">
      <h2>Keys</h2>
      <dl>
        {KEYS.map(([key, meaning]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <button onClick={() => setOpen(false)}>Close</button>
    </div>
  );
}
