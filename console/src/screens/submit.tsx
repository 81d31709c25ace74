import { useState } from "react";
import { post } from "../api/client";
import type { Plan, Submitted } from "../api/types";
import { useMay } from "../parts/caller";
import { Empty, ErrorNote } from "../parts/notes";
import { visible } from "../parts/text";
import { go } from "../route";

interface PlanInput {
  name: string;
  type: string;
  is_required: boolean;
  default: unknown;
}

/** Takes a goal for an agent, or a plan with a form made from its inputs. */
export function SubmitScreen() {
  const [kind, setKind] = useState<"goal" | "plan">("goal");
  if (!useMay("run")) return <Empty>Your token does not carry the right to run tasks.</Empty>;
  return (
    <>
      <h1>Submit</h1>
      <div role="tablist" className="tabs">
        {(["goal", "plan"] as const).map((name) => (
          <button key={name} role="tab" aria-selected={kind === name} onClick={() => setKind(name)}>
            {name}
          </button>
        ))}
      </div>
      {kind === "goal" ? <GoalForm /> : <PlanForm />}
    </>
  );
}

/** Sends a submission; the key lets a request whose answer was lost be repeated without a second task. */
function useSubmission(path: string) {
  const [failure, setFailure] = useState<unknown>(null);
  const [isSending, setSending] = useState(false);
  const [key, setKey] = useState(() => crypto.randomUUID());
  const send = (body: Record<string, unknown>) => {
    setFailure(null);
    setSending(true);
    const given = Object.fromEntries(Object.entries(body).filter(([, value]) => value !== ""));
    post<Submitted>(path, given, { "Idempotency-Key": key })
      .then((made) => {
        setKey(crypto.randomUUID());
        go("tasks", made.task.id);
      }, setFailure)
      .finally(() => setSending(false));
  };
  const change = () => setKey(crypto.randomUUID());
  return { failure, isSending, send, change };
}

function GoalForm() {
  const [fields, setFields] = useState({ goal: "", project: "", agent: "", model: "", budget: "" });
  const { failure, isSending, send, change } = useSubmission("/v1/asks");
  const set = (name: keyof typeof fields) => (value: string) => {
    change();
    setFields({ ...fields, [name]: value });
  };
  return (
    <form
      className="form"
      onSubmit={(event) => {
        event.preventDefault();
        send(fields);
      }}
    >
      <label>
        Goal
        <textarea required rows={5} value={fields.goal} onChange={(event) => set("goal")(event.target.value)} />
      </label>
      <Field label="Project folder, on the machine of the service" isRequired value={fields.project} onValue={set("project")} />
      <Field label="Agent" hint="orchestrator" value={fields.agent} onValue={set("agent")} />
      <Field label="Model" hint="that of the service" value={fields.model} onValue={set("model")} />
      <Field label="Budget" hint="such as 2usd" value={fields.budget} onValue={set("budget")} />
      <ErrorNote error={failure} />
      <button disabled={isSending}>Start</button>
    </form>
  );
}

/** Another goal for the agent that answered: it knows the conversation so far. */
export function FollowUpForm({ session }: { session: string }) {
  const [goal, setGoal] = useState("");
  const { failure, isSending, send, change } = useSubmission(`/v1/sessions/${session}/asks`);
  return (
    <form
      className="form"
      onSubmit={(event) => {
        event.preventDefault();
        send({ goal });
      }}
    >
      <label>
        Another goal for this agent
        <textarea
          required
          rows={3}
          value={goal}
          onChange={(event) => {
            change();
            setGoal(event.target.value);
          }}
        />
      </label>
      <ErrorNote error={failure} />
      <button disabled={isSending}>Continue</button>
    </form>
  );
}

function PlanForm() {
  const [plan, setPlan] = useState("");
  const [checked, setChecked] = useState<Plan | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [project, setProject] = useState("");
  const [model, setModel] = useState("");
  const [inputs, setInputs] = useState<Record<string, string>>({});
  const { failure, isSending, send, change } = useSubmission("/v1/tasks");
  const check = () => {
    setProblem(null);
    post<Plan>("/v1/tasks/validate", { plan }).then(setChecked, (error: unknown) => {
      setChecked(null);
      setProblem(error);
    });
  };
  const wanted = (checked?.inputs ?? []) as unknown as PlanInput[];
  return (
    <form
      className="form"
      onSubmit={(event) => {
        event.preventDefault();
        if (!checked) check();
        else send({ plan, project, model, inputs: valuesOf(wanted, inputs) });
      }}
    >
      <label>
        Plan, as YAML or JSON
        <textarea
          required
          rows={14}
          spellCheck={false}
          className="code"
          value={plan}
          onChange={(event) => {
            change();
            setPlan(event.target.value);
            setChecked(null);
          }}
        />
      </label>
      <ErrorNote error={problem} />
      {checked && (
        <>
          <p className="note done">
            {visible(checked.title)}: {checked.steps.length} steps, no problem
          </p>
          {wanted.map((one) => (
            <Field
              key={one.name}
              label={`${visible(one.name)} (${one.type})`}
              hint={one.default === null || one.default === undefined ? "" : JSON.stringify(one.default)}
              isRequired={one.is_required}
              value={inputs[one.name] ?? ""}
              onValue={(value) => {
                change();
                setInputs({ ...inputs, [one.name]: value });
              }}
            />
          ))}
          <Field label="Project folder, on the machine of the service" isRequired value={project} onValue={setProject} />
          <Field label="Model" hint="that of the plan, or of the service" value={model} onValue={setModel} />
        </>
      )}
      <ErrorNote error={failure} />
      <button disabled={isSending}>{checked ? "Start" : "Check"}</button>
    </form>
  );
}

/** Returns the inputs as the plan wants them; what was left empty takes its default. */
function valuesOf(wanted: readonly PlanInput[], given: Readonly<Record<string, string>>): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const { name, type } of wanted) {
    const text = given[name] ?? "";
    if (text) found[name] = type === "string" ? text : parsed(text);
  }
  return found;
}

/** Returns JSON as its value; other text as it is, for the server to say what is wrong with it. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

interface FieldProps {
  label: string;
  value: string;
  onValue: (value: string) => void;
  hint?: string;
  isRequired?: boolean;
}

function Field({ label, value, onValue, hint = "", isRequired = false }: FieldProps) {
  return (
    <label>
      {label}
      <input required={isRequired} placeholder={hint} value={value} onChange={(event) => onValue(event.target.value)} />
    </label>
  );
}
