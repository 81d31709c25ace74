// Every screen, when models, files and tools say what would run, hide or break out of a page that trusted them.
// Usage: node hostile.mjs ADDRESS TASK RUN SESSION QUESTION
import { ask, launch, open, signIn, tell } from "./browser.mjs";

const [address, task, run, session, question] = process.argv.slice(2);
const found = { noted: [], grown: [], raw: [], texts: {} };
const browser = await launch();
const page = await open(browser, found.noted);
const token = await ask("token");
await signIn(page, address, token, "#/tasks");

/** Notes what the text of strangers has become: elements, attributes, or characters that nobody sees. */
async function look(name, ...tabs) {
  await page.locator(".note.empty[role=status]").first().waitFor({ state: "detached" });
  for (const tab of tabs.length ? tabs : [""]) {
    if (tab) await page.getByRole("tab", { name: tab, exact: true }).click();
    await page.locator(".note.empty[role=status]").first().waitFor({ state: "detached" });
    await page.evaluate(() => document.querySelectorAll("main details").forEach((one) => (one.open = true)));
    const seen = await page.evaluate(() => {
      const unseen = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]/;
      const grown = [...document.querySelectorAll("img, iframe, object, embed, form[action], base, math, animate, foreignObject, script, a[href^='javascript' i], [onerror], [onload]")];
      const raw = [...document.querySelectorAll("*")].flatMap((one) => [...one.attributes].filter((each) => unseen.test(each.value)).map((each) => `${one.tagName} ${each.name}`));
      if (unseen.test(document.body.textContent)) raw.push("text");
      if (unseen.test(document.title)) raw.push("title");
      return { grown: grown.filter((one) => one.tagName !== "SCRIPT" || !one.src.startsWith(`${location.origin}/console/`)).map((one) => one.outerHTML.slice(0, 200)), raw, text: document.body.textContent };
    });
    const where = `${name} ${tab}`.trim();
    found.grown.push(...seen.grown.map((one) => `${where}: ${one}`));
    found.raw.push(...seen.raw.map((one) => `${where}: ${one}`));
    found.texts[where] = { isHostile: seen.text.includes("<script>"), length: seen.text.length };
  }
}

const show = (...parts) => page.evaluate((hash) => void (location.hash = hash), `#/${parts.join("/")}`);
await look("tasks");
await show("inbox", question);
await page.getByRole("button", { name: /^Allow once/ }).waitFor();
await look("inbox");
await show("tasks", `${task}?step=look`);
await page.locator(".react-flow__node").first().waitFor();
await page.getByRole("complementary").waitFor();
await look("task", "graph", "steps", "result");
await show("runs", run);
await page.getByRole("tab", { name: "tools" }).waitFor();
await look("run", "transcript", "events", "tools", "details");
await show("sessions");
await look("sessions");
await show("sessions", session);
await look("session");
for (const name of ["workers", "usage", "audit", "submit"]) {
  await show(name);
  await page.locator("h1").first().waitFor();
  await look(name);
}
found.stored = await page.evaluate(async () => [localStorage.length, sessionStorage.length, document.cookie.length, (await caches.keys()).length, (await indexedDB.databases()).length]);

// The policy holds for what gets into the page in spite of all that: nothing inline runs, nothing comes from elsewhere.
found.broken = await page.evaluate(async () => {
  globalThis.ran = [];
  const tried = async (name, act) => {
    try {
      await act();
    } catch {
      return; // refused
    }
    globalThis.ran.push(name);
  };
  await tried("html", () => (document.createElement("div").innerHTML = "<b>x</b>"));
  await tried("worker", () => new Worker("/console/console.js"));
  await tried("policy", () => trustedTypes.createPolicy("mine", { createHTML: (text) => text }));
  await tried("fetch", () => fetch("http://127.0.0.1:9/"));
  const inline = document.createElement("script");
  await tried("script", () => (inline.textContent = "ran.push('inline')"));
  const style = document.createElement("link");
  Object.assign(style, { rel: "stylesheet", href: "http://127.0.0.1:9/x.css" });
  document.head.append(style);
  return globalThis.ran;
});
found.noted = found.noted.filter((one) => !/Content Security Policy|TrustedScript|Trusted Type|Refused|violates/.test(one));

// A page of another origin has the token and gets nothing.
const elsewhere = await open(browser, []);
await elsewhere.goto("about:blank");
found.elsewhere = await elsewhere.evaluate(
  ([url, text]) => fetch(url, { headers: { Authorization: `Bearer ${text}` } }).then((response) => response.status, () => "nothing"),
  [`${address}/v1/tasks`, token],
);

// A token that is revoked takes what it showed with it.
await show("tasks");
await page.locator("tbody a").first().waitFor();
await ask("revoke");
await page.getByLabel("Token").waitFor();
found.revoked = await page.locator("body").innerText();
await tell(browser, found);
