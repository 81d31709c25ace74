// Reads one JSON object a line, {name, text}, and says of each drawing whether Mermaid can read it, and what it reads.
import { createInterface } from "node:readline";
import { JSDOM } from "jsdom";

const { window } = new JSDOM("");
Object.assign(globalThis, { window, document: window.document });
const { default: mermaid } = await import("mermaid");

for await (const line of createInterface({ input: process.stdin })) {
  const { name, text } = JSON.parse(line);
  try {
    const { diagramType, config } = await mermaid.parse(text);
    const { db } = await mermaid.mermaidAPI.getDiagramFromText(text);
    const vertices = [...(db.getVertices?.().values() ?? [])].map((vertex) => vertex.text);
    const edges = (db.getEdges?.() ?? []).length;
    console.log(JSON.stringify({ name, diagramType, config: config ?? {}, vertices, edges, problem: "" }));
  } catch (error) {
    console.log(JSON.stringify({ name, diagramType: "", problem: String(error).slice(0, 400) }));
  }
}
