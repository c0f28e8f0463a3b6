/**
 * A long list: only the rows that can be seen are there, and they are used again as the list scrolls. Keys: j and k go from row to row
 * (and wherever the arrows of the focused list go), Enter opens, x selects.
 */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useKey } from "../keys.js";

export interface Column<T> {
  name: string;
  /** Of grid-template-columns: "2fr", "80px". */
  width: string;
  cell: (row: T, index: number) => ComponentChildren;
  /** Numbers: to the right. */
  end?: boolean;
  /** Left out on narrow screens. */
  wide?: boolean;
  sort?: string;
}

export interface ListProps<T> {
  label: string;
  columns: Column<T>[];
  rows: readonly T[];
  id: (row: T) => string;
  total?: number | null;
  rowHeight?: number;
  /** Pixels; by default as high as its rows, and at most as the window leaves it. */
  height?: number;
  open?: (row: T, index: number) => void;
  opened?: string | null;
  selected?: ReadonlySet<string>;
  onSelect?: (ids: Set<string>) => void;
  /** The end of what is there is near. */
  onEnd?: () => void;
  sort?: { by: string; order: "asc" | "desc" };
  onSort?: (by: string) => void;
  /** Old data, greyed: the server does not answer. */
  isStale?: boolean;
}

export const ROW_PX = 32;
const OVERSCAN = 6;
const WIDE_PX = 720;
const END_ROWS = 30;

export function List<T>(props: ListProps<T>): JSX.Element {
  const { rows, id, rowHeight = ROW_PX, open, selected, onSelect, onEnd } = props;
  const body = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(props.height ?? 400);
  const [width, setWidth] = useState(WIDE_PX);
  const [gutter, setGutter] = useState(0); // of the scroll bar, which the head has not
  const [active, setActive] = useState(0);
  const hasFocus = useRef(false);

  useLayoutEffect(() => {
    const element = body.current!;
    const measure = () => {
      setHeight(element.clientHeight);
      setWidth(element.clientWidth);
      setGutter(element.offsetWidth - element.clientWidth);
    };
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, []);

  // A filter may leave fewer rows than were scrolled past: clamp, else the list looks empty.
  const first = Math.max(0, Math.min(Math.floor(top / rowHeight) - OVERSCAN, rows.length - Math.ceil(height / rowHeight)));
  const last = Math.min(rows.length, first + Math.ceil(height / rowHeight) + 2 * OVERSCAN);

  useEffect(() => {
    if (onEnd !== undefined && last > rows.length - END_ROWS) onEnd();
  }, [last, rows.length]);

  const clamped = Math.min(active, Math.max(0, rows.length - 1));
  const show = (index: number) => {
    const element = body.current!;
    const from = index * rowHeight;
    if (from < element.scrollTop) element.scrollTop = from;
    else if (from + rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = from + rowHeight - element.clientHeight;
  };
  const step = (by: number) => {
    if (rows.length === 0) return;
    const next = Math.max(0, Math.min(rows.length - 1, hasFocus.current ? clamped + by : clamped));
    setActive(next);
    show(next);
    body.current!.focus({ preventScroll: true });
  };
  const toggle = (row: T) => {
    if (onSelect === undefined) return;
    const next = new Set(selected);
    if (!next.delete(id(row))) next.add(id(row));
    onSelect(next);
  };
  useKey("j", () => step(1));
  useKey("k", () => step(-1));
  useKey("x", () => {
    const row = rows[clamped];
    if (row !== undefined) toggle(row);
  });

  const isNarrow = width < WIDE_PX;
  const columns = props.columns.filter((column) => !(isNarrow && column.wide === true));
  const template = (onSelect === undefined ? "" : "32px ") + columns.map((column) => `minmax(0, ${column.width})`).join(" ");
  const isAllSelected = selected !== undefined && rows.length > 0 && rows.every((row) => selected.has(id(row)));
  const pool = last - first;

  return (
    <div
      class={`list${props.isStale === true ? " stale" : ""}${open === undefined ? "" : " opens"}${props.height === undefined ? " fills" : ""}`}
      role="table"
      aria-label={props.label}
      aria-rowcount={(props.total ?? rows.length) + 1}
      aria-colcount={columns.length + (onSelect === undefined ? 0 : 1)}
    >
      <div class="list-head" role="rowgroup" style={{ paddingRight: `${gutter}px` }}>
        <div class="row" role="row" aria-rowindex={1} style={{ gridTemplateColumns: template }}>
          {onSelect !== undefined && (
            <span role="columnheader">
              <input
                type="checkbox"
                aria-label="Select all that are loaded"
                checked={isAllSelected}
                onChange={() => onSelect(isAllSelected ? new Set() : new Set(rows.map(id)))}
              />
            </span>
          )}
          {columns.map((column) => {
            const isSorted = column.sort !== undefined && props.sort?.by === column.sort;
            const direction = props.sort?.order === "asc" ? "ascending" : "descending";
            return (
              <span key={column.name} role="columnheader" class={column.end === true ? "end" : ""} aria-sort={isSorted ? direction : undefined}>
                {column.sort === undefined || props.onSort === undefined ? column.name : (
                  <button type="button" class="sort" onClick={() => props.onSort!(column.sort!)}>
                    {column.name}{isSorted && <span aria-hidden="true">{direction === "ascending" ? " ↑" : " ↓"}</span>}
                  </button>
                )}
              </span>
            );
          })}
        </div>
      </div>
      <div
        ref={body}
        class="list-body"
        role="rowgroup"
        tabIndex={0}
        aria-label={`${props.label}: rows. j and k move, Enter opens${onSelect === undefined ? "" : ", x selects"}.`}
        style={{ height: `${props.height ?? rows.length * rowHeight}px` }}
        onScroll={(event) => setTop(event.currentTarget.scrollTop)}
        onFocus={(event) => {
          hasFocus.current = event.target === event.currentTarget;
        }}
        onBlur={() => {
          hasFocus.current = false;
        }}
        onKeyDown={(event) => {
          if (event.target !== event.currentTarget) return;
          const pageRows = Math.max(1, Math.floor(height / rowHeight) - 1);
          const moves: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: pageRows, PageUp: -pageRows, Home: -rows.length, End: rows.length };
          const by = moves[event.key];
          if (by !== undefined) {
            event.preventDefault();
            step(by);
          }
          const row = rows[clamped];
          if (event.key === "Enter" && row !== undefined && open !== undefined) {
            event.preventDefault();
            open(row, clamped);
          }
        }}
      >
        <div role="presentation" class="list-space" style={{ height: `${rows.length * rowHeight}px` }}>
          {rows.slice(first, last).map((row, offset) => {
            const index = first + offset;
            const mine = id(row);
            const isSelected = selected?.has(mine) === true;
            return (
              <div
                key={index % pool} // rows are used again: a key by place, not by content
                class={`row${index === clamped ? " active" : ""}${isSelected || props.opened === mine ? " selected" : ""}`}
                role="row"
                aria-rowindex={index + 2}
                aria-selected={onSelect === undefined ? undefined : isSelected}
                style={{ gridTemplateColumns: template, height: `${rowHeight}px`, transform: `translateY(${index * rowHeight}px)` }}
                onClick={(event) => {
                  if ((event.target as HTMLElement).closest("a, button, input, label") !== null) return;
                  setActive(index);
                  if (String(getSelection()) === "") open?.(row, index);
                }}
              >
                {onSelect !== undefined && (
                  <span role="cell">
                    <input type="checkbox" tabIndex={-1} aria-label={`Select ${mine}`} checked={isSelected} onChange={() => toggle(row)} />
                  </span>
                )}
                {columns.map((column) => (
                  <span key={column.name} role="cell" class={column.end === true ? "end" : ""}>{column.cell(row, index)}</span>
                ))}
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}
