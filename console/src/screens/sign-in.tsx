import { useState } from "react";
import { ErrorNote } from "../parts/notes";

/** Takes a token by hand; `soong console` opens the page with a code and needs none. */
export function SignInScreen({ failure, onToken }: { failure: unknown; onToken: (token: string) => void }) {
  const [text, setText] = useState("");
  const isToken = /^soong_tok_[0-9a-v]{26,32}_[A-Za-z0-9_-]{43}$/.test(text.trim());
  return (
    <main className="sign-in">
      <h1>Soong</h1>
      <ErrorNote error={failure} />
      <p>
        On the machine of the service, <code>soong console</code> opens this page and signs you in. Elsewhere, paste a token (
        <code>soong tokens create</code>).
      </p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (isToken) onToken(text.trim());
        }}
      >
        <label>
          Token
          <input
            type="password"
            autoComplete="off"
            spellCheck={false}
            value={text}
            onChange={(event) => setText(event.target.value)}
            aria-describedby="token-form"
          />
        </label>
        <p id="token-form" className="dim">
          {text && !isToken ? "A token has the form soong_tok_… and 80 characters." : "It stays in the memory of this page."}
        </p>
        <button disabled={!isToken}>Sign in</button>
      </form>
    </main>
  );
}
