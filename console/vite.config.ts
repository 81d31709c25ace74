// Builds the files that `soong serve` sends. Their names are fixed: the server tells browsers by ETag what is new.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { defineConfig, type Plugin } from "vite";

const root = import.meta.dirname;
const out = join(root, "../orchestrator/http/console");

/** Returns all files that the build is made of, in a fixed order. */
function sources(folder: string): string[] {
  const entries = readdirSync(folder, { withFileTypes: true });
  return entries
    .flatMap((entry) => (entry.isDirectory() ? sources(join(folder, entry.name)) : [join(folder, entry.name)]))
    .sort();
}

/** Writes the digest of the sources beside the build, so that a test without Node.js sees a stale build. */
const sourceDigest: Plugin = {
  name: "source-digest",
  closeBundle() {
    const digest = createHash("sha256");
    const files = [...sources(join(root, "src")), ...["index.html", "package-lock.json", "vite.config.ts"].map((name) => join(root, name))];
    for (const file of files) {
      digest.update(`${relative(root, file)}\0`);
      digest.update(readFileSync(file));
      digest.update("\0");
    }
    writeFileSync(join(out, "sources.json"), `${JSON.stringify({ sha256: digest.digest("hex") })}\n`);
  },
};

export default defineConfig({
  root,
  base: "/console/",
  plugins: [sourceDigest],
  worker: { format: "es", rolldownOptions: { output: { entryFileNames: "[name].js" } } },
  build: {
    outDir: out,
    emptyOutDir: true,
    assetsDir: "",
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    rolldownOptions: {
      output: { entryFileNames: "console.js", chunkFileNames: "[name].js", assetFileNames: "[name][extname]" },
    },
  },
});
