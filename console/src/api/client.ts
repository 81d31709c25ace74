// Requests to the API. The token lives in this module's memory alone: not in a cookie, a storage, or an address.
import type { Caller, Problem } from "./types";

let token = "";
let onSignedOut: () => void = () => undefined;

/** What the API refused, with the place and the fix of each problem. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly problem: Partial<Problem> & { detail: string },
  ) {
    super(problem.detail);
  }

  get code(): string {
    return this.problem.code ?? "unavailable";
  }
}

export function useToken(text: string, signedOut: () => void): void {
  token = text;
  onSignedOut = signedOut;
}

/** Sends a request; raises ApiError for a problem, and for a server that does not answer. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers, cache: "no-store", credentials: "omit", redirect: "error" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError(0, { detail: "The server does not answer. Is the service running?" });
  }
  if (response.ok || response.status === 304) return response;
  const problem = (await response.json().catch(() => ({}))) as Partial<Problem>;
  const failed = new ApiError(response.status, { ...problem, detail: problem.detail ?? response.statusText });
  if (response.status === 401 && token) {
    token = "";
    onSignedOut();
  }
  throw failed;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await request(path, signal ? { signal } : {})).json() as Promise<T>;
}

export async function post<T>(path: string, body: unknown = {}, headers: Record<string, string> = {}): Promise<T> {
  const response = await request(path, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", ...headers },
  });
  return response.json() as Promise<T>;
}

/** Returns `path` with the parameters that have a value. */
export function query(path: string, parameters: Record<string, string | number | undefined>): string {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

/** Puts a secret made here in the place of a sign-in's code; returns the token's text, which no message carried. */
export async function signIn(code: string): Promise<string> {
  const bytes = crypto.getRandomValues(new Uint8Array(32));
  const secret = btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(secret)));
  const hex = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const caller = await post<Caller>("/v1/sign-in", { code, digest: hex });
  return `soong_${caller.token}_${secret}`;
}
