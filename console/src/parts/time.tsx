import { useEffect, useState } from "react";

const UNITS: readonly (readonly [Intl.RelativeTimeFormatUnit, number])[] = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
  ["second", 1],
];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "narrow" });

/** Returns the time now in ms, once a second while `isMoving`. */
export function useNow(isMoving = true): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!isMoving) return;
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, [isMoving]);
  return now;
}

export function agoText(instant: string, now: number): string {
  const seconds = Math.round((Date.parse(instant) - now) / 1_000);
  const [unit, size] = UNITS.find(([, most]) => Math.abs(seconds) >= most) ?? (["second", 1] as const);
  return relative.format(Math.trunc(seconds / size), unit);
}

export function durationText(milliseconds: number): string {
  const seconds = milliseconds / 1_000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** How long ago something was; the exact time when one points at it. */
export function Ago({ at }: { at: string | null }) {
  const now = useNow(at !== null);
  if (at === null) return <>–</>;
  return (
    <time dateTime={at} title={new Date(at).toLocaleString()}>
      {agoText(at, now)}
    </time>
  );
}

/** How long something took, or has taken so far. */
export function Duration({ from, to }: { from: string | null; to: string | null }) {
  const now = useNow(from !== null && to === null);
  if (from === null) return <>–</>;
  return <>{durationText(Math.max(0, (to === null ? now : Date.parse(to)) - Date.parse(from)))}</>;
}
