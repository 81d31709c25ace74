// What every driver needs: a browser, a page that is signed in, and questions to the test that started it.
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Asks the test to do something outside of the browser; returns what it says. */
export async function ask(action, ...given) {
  process.stdout.write(`${JSON.stringify({ action, given })}\n`);
  return JSON.parse((await lines.next()).value);
}

/** Tells the test what was found, and ends. */
export async function tell(browser, found) {
  await browser.close();
  process.stdout.write(`${JSON.stringify({ found })}\n`, () => process.exit(0));
}

export function launch() {
  return chromium.launch({ executablePath: process.env.CHROMIUM, args: OPTIONS });
}

/** Opens a page of its own storage. `noted` gets what no page may do: dialogs, broken policies, errors, tokens in the log. */
export async function open(browser, noted, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  page.on("dialog", (dialog) => (noted.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  page.on("pageerror", (error) => noted.push(`error: ${error.message}`));
  page.on("request", (request) => /soong_tok/.test(request.url()) && noted.push(`token in an address: ${request.url()}`));
  page.on("console", (message) => /Content Security Policy|TrustedScript|soong_tok/.test(message.text()) && noted.push(message.text()));
  return page;
}

export async function signIn(page, address, token, screen = "") {
  await page.goto(`${address}/${screen}`);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("navigation").waitFor();
}
