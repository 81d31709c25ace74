// A task of thousands of steps while it works: how long a person waits for what they do, and what the page holds.
// Usage: node large.mjs ADDRESS TASK PICTURES; the token comes from the test.
import { join } from "node:path";
import { ask, launch, open, signIn, tell } from "./browser.mjs";

const [address, task, pictures] = process.argv.slice(2);
const noted = [];
const browser = await launch();
const page = await open(browser, noted);
const devtools = await page.context().newCDPSession(page);
const ROUNDS = 5;
const waited = {};
const worked = {};
const frames = {};

// Durations are the browser's own: from a click or a key to the next frame (Event Timing, as INP counts it), and of frames
// that took long (Long Animation Frames) for what is no single event, such as a pan.
await page.addInitScript(() => {
  globalThis.seen = [];
  const note = (list) => globalThis.seen.push(...list.getEntries().map((entry) => ({ type: entry.entryType, duration: entry.duration, isOurs: entry.interactionId !== 0 })));
  const watch = new PerformanceObserver(note);
  watch.observe({ type: "event", durationThreshold: 16 });
  new PerformanceObserver(note).observe({ type: "long-animation-frame" });
});

async function cpuMs() {
  const { metrics } = await devtools.send("Performance.getMetrics");
  return 1_000 * metrics.find((one) => one.name === "TaskDuration").value;
}

const settled = () => page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(resolve, 60)))));

/** Does something ROUNDS times; keeps how long its slowest event or frame took each time, and the main thread's CPU. */
async function measure(name, act, { prepare = () => undefined, isContinuous = false } = {}) {
  frames[name] = [];
  waited[name] = [];
  worked[name] = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    await prepare();
    await settled();
    await page.evaluate(() => void (globalThis.seen.length = 0));
    const before = await cpuMs();
    await act(round);
    await settled();
    worked[name].push(Math.round((await cpuMs()) - before));
    const seen = await page.evaluate(() => globalThis.seen);
    const slowest = (...types) => Math.max(0, ...seen.filter((entry) => entry.isOurs && types.includes(entry.type)).map((entry) => Math.round(entry.duration)));
    waited[name].push(slowest(isContinuous ? "long-animation-frame" : "event"));
    frames[name].push(slowest("long-animation-frame"));
  }
}

await signIn(page, address, await ask("token"), `#/tasks/${task}`);
await devtools.send("Performance.enable", { timeDomain: "threadTicks" });
await page.locator(".react-flow__node").first().waitFor();
await page.screenshot({ path: join(pictures, "console-large.png") });

const box = await page.locator(".react-flow__pane").boundingBox();
const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
async function drag(dx, dy) {
  await page.mouse.move(x + 7, y + 3);
  await page.mouse.down();
  await page.mouse.move(x + dx, y + dy, { steps: 12 });
  await page.mouse.up();
}

await measure("pan", (round) => drag(round % 2 ? 300 : -300, round % 2 ? 200 : -200), { isContinuous: true });
await measure("zoom", async (round) => {
  await page.mouse.move(x, y);
  for (let step = 0; step < 4; step += 1) await page.mouse.wheel(0, round % 2 ? 240 : -240);
}, { isContinuous: true });
async function reopen() {
  await page.getByRole("tab", { name: "steps" }).click();
  await page.getByRole("tab", { name: "graph" }).click();
  await page.locator(".step").first().waitFor();
}

const unfold = () => page.locator(".step.fold").first().click();
await measure("unfold", unfold, { prepare: reopen });
await measure("fold", () => page.getByRole("button", { name: "Fold again" }).click(), { prepare: () => reopen().then(unfold) });
await reopen();
await measure("open a step", (round) => page.locator(".step:not(.fold)").nth(3 + round).click());
await measure("next step", () => page.keyboard.press("j"));
await measure("close the step", () => page.keyboard.press("Escape"));
await page.getByRole("tab", { name: "steps" }).click();
await page.getByRole("table", { name: "Steps" }).waitFor();
await measure("filter by text", (round) => page.getByLabel("find").pressSequentially("number"[round]));
await page.getByLabel("find").fill("");
await measure("filter by status", (round) => page.getByLabel("status").selectOption({ index: round % 2 }));
await measure("scroll", (round) => page.locator(".step-table").evaluate((table, top) => void (table.scrollTop = top), 30_000 * round), { isContinuous: true });
await measure("open a row", (round) => page.locator(".step-table .row button").nth(round + 12).click());
await measure("switch views", (round) => page.getByRole("tab", { name: round % 2 ? "steps" : "graph" }).click());

await devtools.send("HeapProfiler.collectGarbage");
const { usedSize } = await devtools.send("Runtime.getHeapUsage");
const nodes = await page.evaluate(() => document.querySelectorAll("*").length);
const shown = await page.locator(".counts .dim").first().innerText();
await tell(browser, { noted, waited, worked, frames, heap: usedSize, nodes, shown });
