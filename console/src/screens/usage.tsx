import { useState } from "react";
import { query } from "../api/client";
import type { UsageSum } from "../api/types";
import { useFetched } from "../parts/fetched";
import { Empty, ErrorNote, Loading } from "../parts/notes";
import { Name } from "../parts/text";
import { linkTo } from "../route";

const BY = ["day", "session", "task", "agent", "model"] as const;
const DAYS = [1, 7, 30, 365] as const;
const count = new Intl.NumberFormat("en");

/** What agents have used: requests, tokens, money. */
export function UsageScreen() {
  const [by, setBy] = useState<(typeof BY)[number]>("day");
  const [days, setDays] = useState<number>(30);
  const sums = useFetched<{ items: UsageSum[]; left_out: number }>(query("/v1/usage", { by, days }), { everyMs: 10_000 });
  const found = sums.data?.items ?? [];
  const most = Math.max(...found.map((one) => Number(one.cost_usd) || 0), 0);
  return (
    <>
      <h1>Usage</h1>
      <p className="controls">
        <label>
          by{" "}
          <select value={by} onChange={(event) => setBy(event.target.value as typeof by)}>
            {BY.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <label>
          in the last{" "}
          <select value={days} onChange={(event) => setDays(Number(event.target.value))}>
            {DAYS.map((count) => (
              <option key={count} value={count}>
                {count === 1 ? "day" : `${count} days`}
              </option>
            ))}
          </select>
        </label>
      </p>
      <ErrorNote error={sums.error} />
      {sums.isPending && <Loading />}
      {sums.data && found.length === 0 && <Empty>No agent has used a model in this time. Runs count when they have ended.</Empty>}
      {found.length > 0 && (
        <table className="numbers">
          <thead>
            <tr>
              <th>{by}</th>
              <th>runs</th>
              <th>requests</th>
              <th>input tokens</th>
              <th>cached</th>
              <th>output tokens</th>
              <th>tool calls</th>
              <th>cost</th>
            </tr>
          </thead>
          <tbody>
            {found.map((one) => (
              <tr key={one.key}>
                <td>{by === "session" || by === "task" ? <a href={linkTo(`${by}s`, one.key)}>{one.key}</a> : <Name>{one.key}</Name>}</td>
                <td>{count.format(one.runs)}</td>
                <td>{count.format(one.requests)}</td>
                <td>{count.format(one.input_tokens)}</td>
                <td>{one.input_tokens ? `${Math.round((100 * one.cached_tokens) / one.input_tokens)} %` : "–"}</td>
                <td>{count.format(one.output_tokens)}</td>
                <td>{count.format(one.tool_calls)}</td>
                <td>
                  {most > 0 && <meter min={0} max={most} value={Number(one.cost_usd)} aria-hidden="true" />} ${Number(one.cost_usd).toFixed(4)}
                  {one.unpriced_runs > 0 && <span className="dim"> and {one.unpriced_runs} runs without a known price</span>}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {sums.data && sums.data.left_out > 0 && <p className="dim">{sums.data.left_out} smaller sums are left out.</p>}
    </>
  );
}
