// The console while things happen to the service: an answer streams, a worker is killed, the server is killed, and two
// people answer at once. Usage: node live.mjs ADDRESS PICTURES
import { join } from "node:path";
import { ask, launch, open, signIn, tell } from "./browser.mjs";

const [address, pictures] = process.argv.slice(2);
const found = { noted: [] };
const browser = await launch();
const ada = await open(browser, found.noted);
await signIn(ada, address, await ask("token", "ada"));
const show = (page, ...parts) => page.evaluate((hash) => void (location.hash = hash), `#/${parts.join("/")}`);

async function openRun(task, title) {
  await show(ada, "tasks", task);
  await ada.getByRole("tab", { name: "steps" }).click();
  await ada.getByRole("button", { name: title }).click();
  await ada.getByRole("link", { name: /^Its run/ }).click();
  await ada.getByRole("tab", { name: "transcript" }).waitFor();
}

// An answer is read while it is written, and stands there once when it is complete.
await openRun(await ask("submit", "streams"), "Describe it");
const streaming = ada.locator(".transcript .streaming");
await streaming.getByText("The folder holds").waitFor();
found.streamed = await streaming.innerText();
await ada.screenshot({ path: join(pictures, "console-streaming.png") });
await streaming.waitFor({ state: "detached" });
await ada.getByText(/from here\.$/).waitFor();
found.written = await ada.locator(".transcript li.assistant").allInnerTexts();

// A worker is killed: what it did goes on elsewhere, and one sees that.
const held = await ask("submit", "holds");
await show(ada, "workers");
const card = ada.locator("section.card", { has: ada.getByText("Hold on") });
await card.waitFor();
const pid = Number(/process (\d+)/.exec(await card.innerText())[1]);
await ask("kill", pid);
const elsewhere = card.filter({ hasNotText: `process ${pid}` });
await elsewhere.waitFor();
found.moved = await elsewhere.innerText();
await ada.screenshot({ path: join(pictures, "console-workers.png") });
await openRun(held, "Hold on");
found.lost = await ada.getByText(/^It lost its worker/).innerText();

// Its task is cancelled, and its function does not end: the page of workers names it.
await ask("cancel", held);
await show(ada, "workers");
found.unended = await ada.locator("section.card .note.warn").first().innerText();
await ada.screenshot({ path: join(pictures, "console-unended.png") });
await ask("release", "holds");

// The server is killed while a log is followed: no reload, nothing missed, nothing twice.
const reading = await ask("submit", "reads");
await openRun(reading, "Read on");
await ada.evaluate(() => void (globalThis.isSamePage = true));
await ada.getByRole("tab", { name: "events" }).click();
const entries = ada.locator("ul.audit li");
await entries.nth(10).waitFor();
await ask("restart");
const before = await entries.count();
await entries.nth(before + 10).waitFor();
await ask("release", "reads");
await ada.locator("h1 .status.completed").waitFor();
found.stored = await ask("events", /runs\/([^?]+)/.exec(ada.url())[1]);
await entries.nth(found.stored.length - 1).waitFor();
found.told = (await entries.locator("summary .dim:first-child").allInnerTexts()).map(Number);
found.isSamePage = await ada.evaluate(() => globalThis.isSamePage === true);

// Two people look at the same question. The first answer counts; the other is told whose it was, and no key meets the next.
const bob = await open(browser, found.noted);
await signIn(bob, address, await ask("token", "bob"));
await ask("submit", "asks");
await show(ada, "inbox");
for (const page of [ada, bob]) await page.locator(".list li").nth(2).waitFor();
await bob.getByRole("heading", { level: 2, name: /write_file/ }).waitFor();
await ada.keyboard.press("d");
await ada.getByLabel(/^Reason/).fill("not this one");
await ada.keyboard.press("Enter");
const told = bob.locator(".detail [role=status]");
await told.getByText(/ada/).waitFor();
found.told_bob = await told.innerText();
await bob.screenshot({ path: join(pictures, "console-settled.png") });
await bob.keyboard.press("a");
found.waiting = await bob.locator(".list li").count();

// Both press at the same moment.
await bob.getByRole("button", { name: "Next" }).click();
await bob.getByRole("button", { name: /^Allow once/ }).waitFor();
await ada.locator(".list li").nth(2).waitFor({ state: "detached" });
await ada.getByRole("button", { name: /^Allow once/ }).waitFor();
await Promise.all([ada.keyboard.press("a"), bob.keyboard.press("a")]);
for (const page of [ada, bob]) await page.locator(".list li").nth(1).waitFor({ state: "detached" });
found.raced = [];
for (const page of [ada, bob]) {
  const said = page.locator("[role=status]").filter({ hasText: /allowed/ }).first();
  await said.waitFor();
  found.raced.push(await said.innerText());
}
await tell(browser, found);
