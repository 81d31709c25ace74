import { createRoot } from "react-dom/client";
import { App } from "./app";
import "@xyflow/react/dist/base.css";
import "./console.css";

const root = document.getElementById("root");
if (root) createRoot(root).render(<App />);
