// The documents of the API by their short names. schema.ts is generated from docs/openapi.json (npm run types).
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Approval = Schemas["AnswerableApproval"];
export type ApprovalDetail = Schemas["AnswerableApprovalDetail"];
export type AuditEntry = Schemas["AuditEntry"];
export type Caller = Schemas["Caller"];
export type Choice = Schemas["Choice"];
export type Plan = Schemas["Plan"];
export type Problem = Schemas["Problem"];
export type Run = Schemas["Run"];
export type RunDetail = Schemas["RunDetail"];
export type RunEvent = Schemas["Event"];
export type RunLine = Schemas["Line"];
export type RunNode = Schemas["Node"];
export type Session = Schemas["Session"];
export type SessionDetail = Schemas["SessionDetail"];
export type StepDetail = Schemas["StepDetail"];
export type StepStatus = Schemas["StepStatus"];
export type Submitted = Schemas["Submitted"];
export type Task = Schemas["Task"];
export type TaskResult = Schemas["TaskResult"];
export type UsageSum = Schemas["UsageSum"];
export type Workers = Schemas["Workers"];

export interface Page<T> {
  items: T[];
  next: string | null;
}

/** A step as the stream of a task sends it. */
export interface LiveStep {
  id: string;
  title: string;
  kind: "agent" | "python" | "celery" | "map";
  map: string;
  depends_on: string[];
  definition: string;
  is_pull_worker: boolean;
  status: StepStatus;
  outcome: "clean" | "partial" | null;
  run: string;
  worker: string;
  attempt: number;
  progress: string;
  error: { type: string; message: string; retryable: boolean } | null;
  started: string | null;
  ended: string | null;
}

/** An event `task` or `change` of the stream of a task. */
export interface TaskNews {
  task: Task;
  kind: "plan" | "ask";
  root_run: string;
  approvals: string[];
  planned: string[];
  steps: LiveStep[];
}
