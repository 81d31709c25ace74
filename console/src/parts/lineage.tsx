import type { Approval } from "../api/types";
import { linkTo } from "../route";
import { visible } from "./text";

type Identity = Approval["identity"];

/** Who asks, from the session's first run down to the asking one. */
export function Lineage({ identity, parents }: { identity: Identity; parents: readonly Identity[] }) {
  return (
    <ol className="lineage" aria-label="Who asks">
      {[...parents].reverse().concat(identity).map((one) => (
        <li key={one.run_id}>
          <a href={linkTo("runs", one.run_id)}>{visible(one.step_title || one.definition || one.role)}</a>
          <span className="dim">
            {" "}
            {one.role}
            {one.model && `, ${visible(one.model)}`}
          </span>
        </li>
      ))}
    </ol>
  );
}
