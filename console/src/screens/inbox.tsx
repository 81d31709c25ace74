import { useCallback, useMemo, useRef, useState } from "react";
import { ApiError, post } from "../api/client";
import type { Approval, ApprovalDetail, Choice } from "../api/types";
import { useMay } from "../parts/caller";
import { useFetched } from "../parts/fetched";
import type { Inbox } from "../parts/inbox-data";
import { useKeys } from "../parts/keys";
import { Lineage } from "../parts/lineage";
import { Empty, ErrorNote, Loading } from "../parts/notes";
import { Diff, Json, Name, visible } from "../parts/text";
import { Ago } from "../parts/time";
import { go, linkTo } from "../route";

type Answered = { id: string; text: string; isError: boolean; mayTryAgain?: boolean };

/** All questions that wait, the chosen one with everything that it asks, and the three answers. */
export function InboxScreen({ inbox, selected }: { inbox: Inbox; selected: string | undefined }) {
  const { questions } = inbox;
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [writing, setWriting] = useState<Choice | null>(null);
  const [notes, setNotes] = useState<Answered[]>([]);
  const sent = useRef(new Set<string>());
  const [passed, setPassed] = useState("");
  const [current, gone] = useCurrent(questions, selected, new Set([...sent.current, passed]));
  const next = useCallback(() => {
    setPassed(gone);
    go("inbox");
  }, [gone]);
  const several = useMemo(() => questions.filter((one) => chosen.has(one.id)), [questions, chosen]);

  const answer = useCallback(
    async (choice: Choice, reason = "") => {
      const answered = (several.length ? several : current ? [current] : []).filter((one) => !sent.current.has(one.id));
      for (const one of answered) sent.current.add(one.id);
      const told = await Promise.all(answered.map((one) => send(one, choice, reason)));
      for (const one of told) if (one.mayTryAgain) sent.current.delete(one.id);
      setNotes((before) => [...told, ...before].slice(0, 5));
      setChosen(new Set());
      setWriting(null);
    },
    [several, current],
  );

  const toggle = useCallback((id: string) => {
    setChosen((before) => {
      const after = new Set(before);
      if (!after.delete(id)) after.add(id);
      return after;
    });
  }, []);

  useKeys(
    useCallback(
      (key) => {
        const at = questions.findIndex((one) => one.id === current?.id);
        const to = key === "j" ? questions[at + 1] : key === "k" ? questions[at - 1] : undefined;
        if (to) go("inbox", to.id);
        else if (!current) return false; // also while one is shown that another has answered: no key meets the next
        else if (key === "x") toggle(current.id);
        else if (key === "a" && current.may_answer && takesWords(several, current)) setWriting("allow_once");
        else if (key === "a" && current.may_answer) void answer("allow_once");
        else if (key === "s" && offers(several.length ? several : [current], "allow_for_session")) void answer("allow_for_session");
        else if (key === "d" && current.may_answer) setWriting("deny");
        else return false;
        return true;
      },
      [questions, current, several, answer, toggle],
    ),
  );

  if (!inbox.isLoaded) return <Loading />;
  return (
    <div className="columns">
      <section aria-label="Questions" className="list">
        <h1>Inbox</h1>
        {notes.map((note) => (
          <p key={note.id} className={`note ${note.isError ? "error" : "done"}`} role="status">
            {visible(note.text)}
          </p>
        ))}
        {questions.length === 0 && <Empty>Nobody asks anything. Questions of running agents appear here.</Empty>}
        <ul>
          {questions.map((one) => (
            <li key={one.id} className={one.id === current?.id ? "current" : ""}>
              <input
                type="checkbox"
                aria-label={`Select the question of ${one.tool}`}
                checked={chosen.has(one.id)}
                onChange={() => toggle(one.id)}
              />
              <a href={linkTo("inbox", one.id)} aria-current={one.id === current?.id ? "true" : undefined}>
                <strong>{one.tool}</strong> <Risk question={one} />
                <br />
                <Name>{one.target.shown}</Name>
                <br />
                <span className="dim">
                  <Name>{one.identity.step_title || one.identity.definition}</Name> · <Ago at={one.asked} />
                </span>
              </a>
            </li>
          ))}
        </ul>
      </section>
      {gone && (
        <section aria-label="The question" className="detail">
          <Settled key={gone} id={gone} onNext={next} />
        </section>
      )}
      {current && (
        <section aria-label="The question" className="detail">
          <Question question={current} />
          <Answers
            questions={several.length ? several : [current]}
            writing={writing}
            onWriting={setWriting}
            onAnswer={(choice, reason) => void answer(choice, reason)}
          />
        </section>
      )}
    </div>
  );
}

/** A question that an MCP server asks: the reason of an answer is what the person says to the server. */
function takesWords(several: readonly Approval[], current: Approval): boolean {
  const [only = current, ...others] = several;
  return others.length === 0 && only.tool.endsWith(".elicitation/create");
}

/** Returns the question that is shown: one that waits; or, second, the id of one that does not wait any more.
 *
 * What somebody looks at changes only by what they do: another question in its place could get an answer that was meant
 * for the one before.
 */
function useCurrent(questions: readonly Approval[], selected: string | undefined, left: ReadonlySet<string>): [Approval | undefined, string] {
  const shown = useRef({ id: "", selected });
  const wanted = selected ?? (shown.current.selected === selected ? shown.current.id : "");
  const waiting = questions.find((one) => one.id === wanted);
  if (!waiting && wanted && !left.has(wanted)) return [undefined, wanted];
  const current = waiting ?? questions[0];
  shown.current = { id: current?.id ?? "", selected };
  return [current, ""];
}

/** A question that another has answered, or that nobody asks any more, while somebody looked at it or at a link to it. */
function Settled({ id, onNext }: { id: string; onNext: () => void }) {
  const { data, error, isPending } = useFetched<ApprovalDetail>(`/v1/approvals/${id}`);
  if (isPending) return <Loading />;
  return (
    <>
      {data && (
        <>
          <h2>{data.tool}</h2>
          <p>
            <code>{visible(data.target.shown)}</code>
          </p>
          <p className="note warn" role="status">
            {data.may_answer ? "It waits behind the questions of this list." : `No answer is needed any more: ${visible(data.sentence)}.`}
          </p>
        </>
      )}
      <ErrorNote error={error} />
      <button onClick={onNext}>Next</button>
    </>
  );
}

function offers(questions: readonly Approval[], choice: Choice): boolean {
  return questions.every((one) => one.may_answer && one.choices.includes(choice));
}

async function send(question: Approval, choice: Choice, reason: string): Promise<Answered> {
  const what = `${question.tool} ${question.target.shown}`;
  try {
    const path = `/v1/approvals/${question.id}/answer?wait=5`;
    const stored = await post<Approval>(path, { choice, reason, input_digest: question.input_digest });
    return { id: question.id, text: `${what}: ${stored.sentence}`, isError: false };
  } catch (error) {
    const text = error instanceof ApiError && error.code === "already_decided" ? `answered by another: ${error.message}` : String(error);
    const isSettled = error instanceof ApiError && ["already_decided", "gone"].includes(error.code);
    return { id: question.id, text: `${what}: ${text}`, isError: true, mayTryAgain: !isSettled };
  }
}

function Risk({ question }: { question: Approval }) {
  return (
    <span className={`risk ${question.risk}`}>
      {question.risk}
      {question.is_dangerous && ", dangerous"}
    </span>
  );
}

function Question({ question }: { question: Approval }) {
  const detail = useFetched<ApprovalDetail>(`/v1/approvals/${question.id}`);
  const whole = detail.data;
  return (
    <>
      <h2>
        {question.tool} <Risk question={question} />
      </h2>
      <Lineage identity={question.identity} parents={whole?.parents ?? []} />
      <dl className="facts">
        <Fact name={question.target.kind || "target"}>
          <code>{visible(question.target.shown)}</code>
        </Fact>
        {question.cwd && (
          <Fact name="in">
            <code>{visible(question.cwd)}</code>
          </Fact>
        )}
        {question.env.length > 0 && <Fact name="variables">{question.env.map(visible).join(", ")}</Fact>}
        <Fact name="why it asks">{visible(question.risk_summary)}</Fact>
        {question.hook_result && <Fact name="hooks">{visible(question.hook_result)}</Fact>}
        <Fact name="task">
          <a href={linkTo("tasks", question.identity.task_id)}>{visible(whole?.task_title ?? question.identity.task_id)}</a>
        </Fact>
        <Fact name="asked">
          <Ago at={question.asked} />
        </Fact>
        {question.precondition && <Fact name="holds only while">{visible(question.precondition)}</Fact>}
      </dl>
      {whole?.is_tainted && <p className="note warn">The run has read content of strangers, which may have told it what to do.</p>}
      {question.identity.is_foreign && <p className="note warn">{question.identity.dispatched_by} started this run, not the session.</p>}
      {question.unknown_effects.length > 0 && (
        <>
          <p className="note warn">Earlier calls of this run may or may not have happened:</p>
          <Json value={question.unknown_effects} />
        </>
      )}
      <ErrorNote error={detail.error} />
      {question.preview && <Diff text={question.preview} />}
      <details open={!question.preview}>
        <summary>The whole input{whole && !whole.full_input.is_exact && ` (${whole.full_input.note})`}</summary>
        <Json value={whole?.full_input.input ?? question.arguments} />
      </details>
    </>
  );
}

function Fact({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

interface AnswersProps {
  questions: readonly Approval[];
  writing: Choice | null;
  onWriting: (choice: Choice | null) => void;
  onAnswer: (choice: Choice, reason?: string) => void;
}

function Answers({ questions, writing, onWriting, onAnswer }: AnswersProps) {
  const [reason, setReason] = useState("");
  const mayApprove = useMay("approve");
  const refusal = questions.find((one) => !one.may_answer)?.may_not_because;
  if (!mayApprove || refusal) {
    return <p className="note">{visible(refusal ?? "Your token does not carry the right to approve.")}</p>;
  }
  const count = questions.length > 1 ? ` all ${questions.length}` : "";
  const grants = [...new Set(questions.map((one) => one.session_grant))];
  const [first] = questions;
  return (
    <div className="answers">
      {writing ? (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            onAnswer(writing, reason);
            setReason("");
          }}
        >
          <label>
            {writing === "deny" ? "Reason, which the agent reads" : "Your answer, which the server gets"}
            <input autoFocus maxLength={2_000} value={reason} onChange={(event) => setReason(event.target.value)} />
          </label>
          {writing === "deny" ? <button className="deny">Deny{count}</button> : <button>Answer</button>}
          <button type="button" onClick={() => onWriting(null)}>
            Back
          </button>
        </form>
      ) : (
        <>
          <button onClick={() => (first && takesWords(questions, first) ? onWriting("allow_once") : onAnswer("allow_once"))}>
            Allow once{count} <kbd>a</kbd>
          </button>
          {offers(questions, "allow_for_session") && (
            <button onClick={() => onAnswer("allow_for_session")}>
              Allow for this session{count} <kbd>s</kbd>
              <small>{visible(grants.join("; "))}</small>
            </button>
          )}
          <button className="deny" onClick={() => onWriting("deny")}>
            Deny{count} <kbd>d</kbd>
          </button>
        </>
      )}
    </div>
  );
}
