/** What can be done with a whole broker: drain it, have it take its share, go on without it. The nodes do it by themselves; the page shows how far they are. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get, path, query, send } from "../api.js";
import { count, plural } from "../format.js";
import { denied } from "../rights.js";
import { useResource } from "../resource.js";
import { Button, Confirm, Dialog, ErrorNote, Field, Select, Waiting, tell, useDoing } from "../ui/basics.js";

interface Plan {
  moves: { topic: string; partition: number; source: string; to: string }[];
  total: number;
}

const SHOWN_MAX = 8;

export function Drain(props: { name: string; isDraining: boolean; onChanged: () => void; onClose: () => void }): JSX.Element {
  const { name, isDraining } = props;
  const plan = useResource(`${name} ${isDraining}`, (signal) => get<Plan>(path`mq/v1/brokers/${name}/plan` + query({ draining: isDraining }), signal));
  const doing = useDoing();
  const act = async () => {
    await send("PATCH", path`mq/v1/brokers/${name}`, { draining: isDraining });
    tell(isDraining ? `${name} gives its partitions and groups to the others.` : `${name} takes its share.`);
    props.onChanged();
  };
  return (
    <Dialog title={isDraining ? `Drain ${name}` : `Add ${name}`} onClose={props.onClose}>
      <div class="form">
        <div class="prose">
          {isDraining
            ? <p>The node gives its partitions and consumer groups to the others, one after the other, and takes none any more. Its older records, its delayed records and its
                recurring schedules stay on it: it may be removed for good when it is <b>drained</b>, has no sealed segments, and nothing waits there for its time.</p>
            : <p>Partitions begin on <b>{name}</b> (again), and it takes its share of those that there are, some each second. Groups stay where they are.</p>}
        </div>
        {plan.data === null ? <Waiting error={plan.error} retry={plan.reload} />
          : plan.data.total === 0 ? <p class="muted">There is no partition to move.</p> : (
            <>
              <p>{plural(plan.data.total, "partition")} to move:</p>
              <ul class="plain mono small">
                {plan.data.moves.slice(0, SHOWN_MAX).map(({ topic, partition, source, to }) => <li key={`${topic}/${partition}`}>{topic}/{partition}: {source} → {to}</li>)}
                {plan.data.total > SHOWN_MAX && <li>and {count(plan.data.total - SHOWN_MAX)} more</li>}
              </ul>
            </>
          )}
        <ErrorNote error={doing.error} />
        <div class="actions">
          <Button kind="quiet" onClick={props.onClose}>Cancel</Button>
          <Button
            kind="main" busy={doing.isBusy} reason={plan.data === null ? "The plan is not there yet." : denied("operate")}
            onClick={() => void doing.run(act).then((isDone) => isDone && props.onClose())}
          >{isDraining ? "Drain" : "Add"}</Button>
        </div>
      </div>
    </Dialog>
  );
}

/** What it costs to go on without a node: said before the name is typed. */
function Costs(props: { name: string }): JSX.Element {
  return (
    <>
      <p>Only if <b>{props.name}</b> does not come back soon. If it can be started, start it: then nothing has to be done.</p>
      <ul class="prose-list">
        <li>Records that only {props.name} has cannot be read until it is back; nothing is skipped.</li>
        <li>New records go on at offsets far behind the old ones (2⁴⁴), so that none is given twice.</li>
        <li>Sends that are repeated meanwhile may be stored twice.</li>
      </ul>
    </>
  );
}

/** All partitions and groups of a broker that is not there. */
export function TakeOver(props: { name: string; onChanged: () => void; onClose: () => void }): JSX.Element {
  const { name } = props;
  return (
    <Confirm
      title={`Go on without ${name}`} action="Take over" name={name} onClose={props.onClose}
      act={async () => {
        const { partitions, groups } = await send<{ partitions: number; groups: string[] }>("POST", path`mq/v1/brokers/${name}/takeover`, { accept_offline: true });
        tell(`${plural(partitions, "partition")} and ${plural(groups.length, "group")} of ${name} are taken over.`);
        props.onChanged();
      }}
    >
      <Costs name={name} />
      <p>Its consumer groups begin anew on this node: their offsets, leases and settings are on {name} alone. <b>Reset</b> of a group sets where it begins.</p>
    </Confirm>
  );
}

/** One partition of a broker that is not there. */
export function TakePartition(props: { topic: string; partition: number; owner: string; others: string[]; onChanged: () => void; onClose: () => void }): JSX.Element {
  const { topic, partition, owner, others } = props;
  const [to, setTo] = useState("");
  const shown = `${topic}/${partition}`;
  return (
    <Confirm
      title={`Go on with ${shown} without ${owner}`} action="Take over" name={shown} onClose={props.onClose}
      act={async () => {
        const { owner: taker } = await send<{ owner: string }>("POST", path`mq/v1/topics/${topic}/partitions/${partition}/takeover`, { accept_offline: true, ...(to === "" ? {} : { to }) });
        tell(`${shown} goes on on ${taker}.`);
        props.onChanged();
      }}
    >
      <Costs name={owner} />
      <Field label="On"><Select value={to} options={[["", "the broker with the fewest"], ...others.map((one) => [one, one] as const)]} onChange={setTo} /></Field>
    </Confirm>
  );
}
