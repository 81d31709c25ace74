// Flower's page of tasks, for docs/operations.md. Usage: node flower.mjs ADDRESS USER PASSWORD PICTURES
import { join } from "node:path";
import { launch, open, tell } from "./browser.mjs";

const [address, username, password, pictures] = process.argv.slice(2);
const browser = await launch();
const page = await open(browser, [], { httpCredentials: { username, password }, viewport: { width: 1280, height: 520 } });
await page.goto(`${address}/tasks`);
await page.getByText("AGENT-APPROVAL-WAITING").first().waitFor();
await page.screenshot({ path: join(pictures, "flower-tasks.png") });
await tell(browser, { rows: await page.locator("tbody tr").allInnerTexts() });
