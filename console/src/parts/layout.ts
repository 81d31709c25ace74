// Where the steps of a graph stand. A layout of hundreds takes longer than a frame, so a worker makes it.
import { startTransition, useEffect, useState } from "react";
import { inLayers, type Place } from "./layers";
import workerUrl from "./layout-worker?worker&url";
import type { Linked } from "./order";

interface UrlPolicy {
  createScriptURL: (url: string) => string;
}

declare global {
  // Not in TypeScript's library yet; a browser without it takes the address as it is.
  var trustedTypes: { createPolicy: (name: string, rules: UrlPolicy) => UrlPolicy } | undefined;
}

/** The one policy that the page's CSP allows: this worker's address is the only text that becomes a script. */
const policy: UrlPolicy = (globalThis.trustedTypes ?? { createPolicy: (_name, rules) => rules }).createPolicy("soong-worker", {
  createScriptURL(url) {
    if (url !== workerUrl) throw new TypeError("no script of the console");
    return url;
  },
});

export interface Laid<T> {
  steps: readonly T[];
  places: ReadonlyMap<string, Place>;
}

/** Returns the steps with a place for each; those of before until a new layout is made, undefined before the first. */
export function useLaid<T extends Linked>(steps: readonly T[]): Laid<T> | undefined {
  const [laid, setLaid] = useState<Laid<T>>();
  useEffect(() => {
    // A transition: what somebody does meanwhile is answered first.
    const show = (places: ReadonlyMap<string, Place>) => startTransition(() => setLaid({ steps, places }));
    const worker = new Worker(policy.createScriptURL(workerUrl), { type: "module" });
    worker.onmessage = ({ data }: MessageEvent<Map<string, Place>>) => show(data);
    worker.onerror = () => show(inLayers(steps));
    worker.postMessage(steps.map(({ id, depends_on }) => ({ id, depends_on })));
    return () => worker.terminate();
  }, [steps]);
  return laid;
}
