import { createContext, useContext } from "react";
import type { Caller } from "../api/types";

export const CallerContext = createContext<Caller | null>(null);

/** Says whether the token carries a right. The server decides; this only hides what it would refuse. */
export function useMay(right: "run" | "approve" | "admin"): boolean {
  return useContext(CallerContext)?.rights.includes(right) ?? false;
}

export function useCaller(): Caller | null {
  return useContext(CallerContext);
}
