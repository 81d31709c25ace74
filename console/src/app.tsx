import { useCallback, useEffect, useState } from "react";
import { signIn, useToken as setToken } from "./api/client";
import type { Caller } from "./api/types";
import { CallerContext } from "./parts/caller";
import { useFetched } from "./parts/fetched";
import { KeyHelp } from "./parts/keys";
import { useInbox } from "./parts/inbox-data";
import { ErrorNote } from "./parts/notes";
import { takeCode, useRoute, linkTo } from "./route";
import { AuditScreen } from "./screens/audit";
import { InboxScreen } from "./screens/inbox";
import { RunScreen } from "./screens/run";
import { SessionScreen, SessionsScreen } from "./screens/sessions";
import { SignInScreen } from "./screens/sign-in";
import { SubmitScreen } from "./screens/submit";
import { TaskScreen } from "./screens/task";
import { TasksScreen } from "./screens/tasks";
import { UsageScreen } from "./screens/usage";
import { WorkersScreen } from "./screens/workers";

const SCREENS = [
  ["inbox", "Inbox"],
  ["tasks", "Tasks"],
  ["sessions", "Sessions"],
  ["workers", "Workers"],
  ["usage", "Usage"],
  ["audit", "Audit"],
  ["submit", "Submit"],
] as const;

const code = takeCode();

/** Signs in, then shows the screen that the address names. */
export function App() {
  const [isSignedIn, setSignedIn] = useState(false);
  const [failure, setFailure] = useState<unknown>(null);

  const enter = useCallback((token: string) => {
    setToken(token, () => {
      setSignedIn(false);
      setFailure(new Error("The token has expired or was revoked."));
    });
    setFailure(null);
    setSignedIn(true);
  }, []);

  useEffect(() => {
    if (code) signIn(code).then(enter, setFailure);
  }, [enter]);

  return isSignedIn ? <Frame /> : <SignInScreen failure={failure} onToken={enter} />;
}

function Frame() {
  const caller = useFetched<Caller>("/v1/me");
  if (caller.error) return <ErrorNote error={caller.error} />;
  if (!caller.data) return null;
  return (
    <CallerContext value={caller.data}>
      <Screens />
    </CallerContext>
  );
}

function Screens() {
  const { parts } = useRoute();
  const inbox = useInbox();
  const waiting = inbox.questions.length;
  const here = parts[0] === "runs" ? "tasks" : (parts[0] ?? "inbox");

  useEffect(() => {
    document.title = waiting ? `(${waiting}) Soong` : "Soong";
  }, [waiting]);

  return (
    <div className="frame">
      <nav aria-label="Screens">
        <a className="brand" href={linkTo("inbox")}>
          Soong
        </a>
        {SCREENS.map(([name, label]) => (
          <a key={name} href={linkTo(name)} aria-current={here === name ? "page" : undefined}>
            {label}
            {name === "inbox" && waiting > 0 && <span className="badge">{waiting}</span>}
          </a>
        ))}
      </nav>
      <main id="main">
        {!inbox.isConnected && (
          <p className="banner" role="status">
            The connection is lost. What you see may be old; it is tried again.
          </p>
        )}
        <Screen parts={parts} inbox={inbox} />
      </main>
      <KeyHelp />
    </div>
  );
}

function Screen({ parts, inbox }: { parts: string[]; inbox: ReturnType<typeof useInbox> }) {
  const [name, id] = parts;
  switch (name) {
    case undefined:
    case "inbox":
      return <InboxScreen inbox={inbox} selected={id} />;
    case "tasks":
      return id ? <TaskScreen key={id} id={id} /> : <TasksScreen />;
    case "runs":
      return id ? <RunScreen key={id} id={id} /> : <TasksScreen />;
    case "sessions":
      return id ? <SessionScreen key={id} id={id} /> : <SessionsScreen />;
    case "workers":
      return <WorkersScreen />;
    case "usage":
      return <UsageScreen />;
    case "audit":
      return <AuditScreen />;
    case "submit":
      return <SubmitScreen />;
    default:
      return <p>There is no screen of that name.</p>;
  }
}
