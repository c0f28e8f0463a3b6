/** All partitions off a broker, or its share of them to it: the server plans, and the moves are made here one after the other. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { get, path, query, send } from "../api.js";
import { count, plural } from "../format.js";
import { denied } from "../rights.js";
import { useResource } from "../resource.js";
import { Button, Dialog, ErrorNote, Waiting, tell, useDoing } from "../ui/basics.js";
import { move } from "./brokers.js";

interface Plan {
  moves: { topic: string; partition: number; source: string; to: string }[];
  total: number;
}

const SHOWN_MAX = 8;

export function Drain(props: { name: string; isDraining: boolean; onChanged: () => void; onClose: () => void }): JSX.Element {
  const { name, isDraining } = props;
  const ask = (signal?: AbortSignal) => get<Plan>(path`mq/v1/brokers/${name}/plan` + query({ draining: isDraining }), signal);
  const plan = useResource(`${name} ${isDraining}`, ask);
  const [done, setDone] = useState<{ moved: number; of: number; now: string } | null>(null);
  const isStopped = useRef(false);
  const doing = useDoing();
  const act = async () => {
    isStopped.current = false;
    await send("PATCH", path`mq/v1/brokers/${name}`, { draining: isDraining });
    let moved = 0;
    try {
      for (let next = await ask(); next.moves.length > 0 && !isStopped.current; next = await ask()) {
        const of = moved + next.total;
        for (const { topic, partition, to } of next.moves) {
          if (isStopped.current) break;
          setDone({ moved, of, now: `${topic}/${partition} → ${to}` });
          await move(topic, partition, to);
          moved++;
        }
      }
    } finally {
      setDone(null);
      plan.reload();
      props.onChanged();
    }
    tell(`${isStopped.current ? "Stopped" : isDraining ? `${name} has no open partition` : `${name} has its share`}: ${plural(moved, "partition")} moved.`);
    if (!isStopped.current) props.onClose();
  };
  const close = () => {
    isStopped.current = true;
    props.onClose();
  };
  return (
    <Dialog title={isDraining ? `Drain ${name}` : `Add ${name}`} onClose={close}>
      <div class="prose">
        {isDraining
          ? <p>No partition begins on <b>{name}</b> any more, and those that are on it go to the others. Its older records stay on it and are read from there until they expire; so do its groups and delayed records. Do not take it away before.</p>
          : <p>Partitions begin on <b>{name}</b> (again), and its share of those that there are goes to it.</p>}
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
      {done !== null && (
        <p role="status"><progress max={done.of} value={done.moved} aria-label="Partitions moved" /> {count(done.moved)} of {count(done.of)}: <span class="mono">{done.now}</span></p>
      )}
      <ErrorNote error={doing.error} />
      <div class="actions">
        <Button kind="quiet" onClick={close}>{doing.isBusy ? "Stop after this one" : "Cancel"}</Button>
        <Button kind="main" reason={plan.data === null ? "The plan is not there yet." : denied("operate")} busy={doing.isBusy} onClick={() => void doing.run(act)}>{isDraining ? "Drain" : "Add"}</Button>
      </div>
    </Dialog>
  );
}
