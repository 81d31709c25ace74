// Drives the web console as a person does, in a real browser, and prints what it found as one JSON document.
// Usage: node drive.mjs LINK PLAN PROJECT PICTURES
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { AxeBuilder } from "@axe-core/playwright";
import { chromium } from "playwright-core";

const [link, plan, project, pictures] = process.argv.slice(2);
const found = { dialogs: 0, violations: [], errors: [], axe: [], answered: [], statuses: [] };
const options = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: options });
const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
const page = await context.newPage();
page.setDefaultTimeout(60_000);
page.on("dialog", (dialog) => ((found.dialogs += 1), dialog.dismiss()));
page.on("pageerror", (error) => found.errors.push(error.message));
page.on("console", (message) => message.text().includes("Content Security Policy") && found.violations.push(message.text()));

async function look(name) {
  const result = await new AxeBuilder({ page }).analyze();
  for (const one of result.violations) {
    if (["serious", "critical"].includes(one.impact)) found.axe.push(`${name}: ${one.id}: ${one.nodes[0].html.slice(0, 200)}`);
  }
  await page.screenshot({ path: join(pictures, `console-${name}.png`) });
}

async function open(name, text) {
  await page.getByRole("navigation").getByRole("link", { name }).click();
  await page.getByRole("heading", { level: 1, name: text ?? name }).waitFor();
}

async function submit(text) {
  await open("Submit");
  await page.getByRole("tab", { name: "plan" }).click();
  await page.getByLabel("Plan, as YAML or JSON").fill(text);
  await page.getByRole("button", { name: "Check" }).click();
  await page.getByLabel("Project folder").fill(project);
  await page.getByRole("button", { name: "Start" }).click();
  await page.locator(".react-flow__node").first().waitFor();
}

await page.goto(link);
await page.getByRole("navigation").waitFor();
found.address = page.url();

await submit(readFileSync(plan, "utf8"));
await look("task");

await open(/^Inbox/, "Inbox");
await page.locator(".list li").nth(1).waitFor();
await look("inbox");
await page.setViewportSize({ width: 390, height: 800 });
await look("inbox-phone");
const [question, list] = await Promise.all([page.locator(".detail"), page.locator(".list")].map((one) => one.boundingBox()));
found.question_first = question.y + question.height <= list.y;
await page.setViewportSize({ width: 1280, height: 800 });
await page.keyboard.press("a");
found.answered.push(await page.getByRole("status").first().innerText());
await page.locator(".list li").nth(1).waitFor({ state: "detached" });
await page.keyboard.press("d");
await page.getByLabel(/^Reason/).fill("not there");
await page.keyboard.press("Enter");
await page.getByText("Nobody asks anything").waitFor();
found.answered.push(await page.getByRole("status").first().innerText());

await open("Tasks");
await page.locator("tbody a").first().click();
await page.locator("h1 .status.completed, h1 .status.failed").waitFor();
found.statuses.push(await page.locator("h1 .status").innerText());
await page.getByRole("tab", { name: "steps" }).click();
found.rows = await page.locator(".step-table .row").count();
await page.locator(".step-table .row button").last().click();
await page.getByRole("complementary").waitFor();
await look("step");
await page.getByText("Its run").click();
await page.locator(".transcript li").nth(2).waitFor();
await look("run");
await page.getByRole("tab", { name: "logs" }).click();
await page.locator(".lines li").first().waitFor();
await look("logs");
found.lines = await page.locator(".lines li").allInnerTexts();
await page.getByRole("tab", { name: "tools" }).click();
found.tools = await page.locator("tbody tr").count();

// A task that has used all it may is given more.
await submit("title: limited\nlimits: {max_turns: 1}\nsteps:\n  - {id: a, script: builtin.echo}\n  - {id: b, depends_on: [a], script: builtin.echo}\n");
await page.locator("h1 .status.failed").waitFor();
await page.getByRole("tab", { name: "result" }).click();
await page.getByLabel("Most model turns").fill("9");
await look("limits");
await page.getByRole("button", { name: "Raise and continue" }).click();
await page.locator("h1 .status.completed").waitFor();
await page.getByRole("cell", { name: "9" }).waitFor();
found.limits = await page.locator("form tbody tr").allInnerTexts();
found.commands = await page.locator("header button").allInnerTexts();

// An agent that was stopped has made no step, and can be run again.
await open("Submit");
await page.getByLabel("Goal").fill("Wait.");
await page.getByLabel("Project folder").fill(project);
await page.getByLabel("Model", { exact: true }).fill("openai-chat:nobody-answers");
await page.getByRole("button", { name: "Start" }).click();
await page.getByRole("button", { name: "cancel" }).click();
await page.locator("h1 .status.cancelled").waitFor();
found.stopped = await page.locator("header button").allInnerTexts();

// Several tasks are found by what they have in common, and cancelled after one look.
for (const title of ["nightly one", "nightly two"]) {
  await submit(`title: ${title}\ntags: [nightly]\nsteps: [{id: a, script: builtin.echo, needs: [nobody-has-it]}]\n`);
  await page.locator("h1 .status.running").waitFor();
  await page.getByLabel(/^priority/).fill("7");
  await page.getByLabel(/^priority/).press("Enter");
}
await open("Tasks");
await page.getByLabel("tag", { exact: true }).fill("nightly");
await page.getByLabel("tag", { exact: true }).press("Enter");
await page.waitForURL(/tag=nightly/);
await page.locator("tbody tr").nth(2).waitFor({ state: "detached" });
await page.getByLabel("all tasks").check();
await page.getByRole("button", { name: "cancel 2 of 2" }).click();
await look("several");
await page.getByRole("button", { name: "yes, cancel" }).click();
await page.locator("tbody .status.cancelled").nth(1).waitFor();
found.several = await page.locator("tbody .status").allInnerTexts();

// A queue is paused, and continues.
await open("Workers");
await page.getByRole("button", { name: "pause pool:default" }).click();
await page.locator(".status.paused").first().waitFor();
await look("paused");
await page.getByRole("button", { name: "resume pool:default" }).first().click();
await page.locator(".status.paused").first().waitFor({ state: "detached" });

for (const name of ["Sessions", "Workers", "Usage", "Audit"]) {
  await open(name);
  await page.locator(".note.empty[role=status]").waitFor({ state: "detached" });
  await look(name.toLowerCase());
}
await page.setViewportSize({ width: 390, height: 800 });
await page.emulateMedia({ colorScheme: "dark" });
await open("Tasks");
await look("phone");
found.scrolls = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
found.stored = await page.evaluate(() => [localStorage.length, sessionStorage.length, document.cookie.length]);
await browser.close();
console.log(JSON.stringify(found));
