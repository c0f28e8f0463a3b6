import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { token } from "../api.js";
import { signIn, signInMessage } from "../session.js";
import { Button, ErrorNote, Field, useDoing } from "../ui/basics.js";

export function SignIn(): JSX.Element {
  const [secret, setSecret] = useState("");
  const doing = useDoing();
  return (
    <main class="centre" id="main">
      <h1>mq console</h1>
      <p class="muted">This server asks for a token. It is kept in this page's memory only: a reload asks again.</p>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          const given = secret.trim();
          if (given === "" || doing.isBusy) return;
          void doing.run(() => signIn(given)).then((isIn) => {
            setSecret("");
            if (!isIn) token.value = null;
          });
        }}
      >
        <Field label="Token">
          <input
            type="password" value={secret} autocomplete="off" spellcheck={false} required name="token"
            onInput={(event) => setSecret(event.currentTarget.value)}
          />
        </Field>
        {signInMessage.value !== "" && <div class="note error" role="alert"><span class="mark" aria-hidden="true">!</span><p>{signInMessage.value}</p></div>}
        <ErrorNote error={doing.error} />
        <div class="actions"><Button kind="main" type="submit" busy={doing.isBusy}>Sign in</Button></div>
      </form>
      <p class="muted small">A token is made with <code>mq token create NAME --allow admin</code> on the server's machine.</p>
    </main>
  );
}
