/**
 * A heat map on a canvas: one cell a bucket, log scale. The arrows move a cursor, Enter goes into the cell, Backspace out; the cell under
 * the cursor is said in words below, and read out.
 */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { count } from "../format.js";
import { colour, isDark } from "../theme.js";

export interface HeatProps {
  label: string;
  /** Row by row; null: no cell there. */
  cells: readonly (number | null)[][];
  /** What a row is: a day, an hour. */
  rowNames: readonly string[];
  columnNames: readonly string[];
  name: (row: number, column: number) => string;
  onEnter: (row: number, column: number) => void;
  onLeave: () => void;
}

const LETTER_PX = 7;
const TOP_PX = 20;
const GAP_PX = 2;
const STEPS = 6;

/** 0 for nothing, then 1 to 5 by the decimal logarithm. */
function stepOf(value: number): number {
  return value <= 0 ? 0 : Math.min(STEPS - 1, 1 + Math.floor(Math.log10(value)));
}

const LEGEND = ["0", "1–9", "10–99", "100–999", "1k–9k", "10k and more"];

export function HeatMap(props: HeatProps): JSX.Element {
  const { cells, rowNames, columnNames } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(600);
  const [cursor, setCursor] = useState<[number, number]>([0, 0]);
  const [isFocused, setFocused] = useState(false);
  const columns = columnNames.length;
  const rowCount = cells.length;
  const left = 8 + LETTER_PX * Math.max(...rowNames.map((name) => name.length));
  const cellWidth = (width - left) / columns;
  const cellHeight = rowCount > 26 ? 14 : rowCount > 10 ? 20 : 28;
  const height = TOP_PX + rowCount * cellHeight;
  const row = Math.min(cursor[0], rowCount - 1);
  const column = Math.min(cursor[1], columns - 1);
  const dark = isDark.value;

  useEffect(() => {
    const element = canvas.current!;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    setWidth(element.clientWidth);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    const element = canvas.current!;
    const scale = devicePixelRatio;
    element.width = Math.round(width * scale);
    element.height = Math.round(height * scale);
    const draw = element.getContext("2d")!;
    draw.scale(scale, scale);
    const heat = Array.from({ length: STEPS }, (_, step) => colour(`heat-${step}`));
    draw.font = "12px ui-sans-serif, system-ui, sans-serif";
    draw.textBaseline = "middle";
    draw.fillStyle = colour("muted");
    let free = 0; // names that would run into the one before are left out
    columnNames.forEach((name, index) => {
      const x = left + index * cellWidth;
      if (name === "" || x < free) return;
      draw.fillText(name, x, 8);
      free = x + draw.measureText(name).width + 8;
    });
    const everyRow = Math.max(1, Math.ceil(13 / cellHeight));
    rowNames.forEach((name, index) => index % everyRow === 0 && draw.fillText(name, 0, TOP_PX + (index + 0.5) * cellHeight, left - 6));
    cells.forEach((line, index) => line.forEach((value, at) => {
      if (value === null) return;
      draw.fillStyle = heat[stepOf(value)]!;
      draw.fillRect(left + at * cellWidth, TOP_PX + index * cellHeight, Math.max(1, cellWidth - GAP_PX), Math.max(1, cellHeight - GAP_PX));
    }));
    if (isFocused) {
      draw.strokeStyle = colour("text");
      draw.lineWidth = 2;
      draw.strokeRect(left + column * cellWidth, TOP_PX + row * cellHeight, cellWidth - GAP_PX, cellHeight - GAP_PX);
    }
  }, [cells, width, height, row, column, isFocused, dark]);

  const at = (event: MouseEvent): [number, number] | null => {
    const found: [number, number] = [Math.floor((event.offsetY - TOP_PX) / cellHeight), Math.floor((event.offsetX - left) / cellWidth)];
    return cells[found[0]]?.[found[1]] == null ? null : found;
  };
  const value = cells[row]?.[column];
  const said = value == null ? "" : `${props.name(row, column)}: ${count(value)} due`;
  return (
    <div class="heat">
      <canvas
        ref={canvas} tabIndex={0} role="application" style={{ height: `${height}px` }}
        aria-label={`${props.label}. Arrow keys move, Enter goes into a cell, Backspace out. ${said}`}
        onFocus={() => setFocused(true)}
        onBlur={() => setFocused(false)}
        onMouseMove={(event) => {
          const found = at(event);
          if (found !== null && (found[0] !== row || found[1] !== column)) setCursor(found);
        }}
        onClick={(event) => {
          const found = at(event);
          if (found !== null) props.onEnter(...found);
        }}
        onKeyDown={(event) => {
          const moves: Record<string, [number, number]> = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
          const by = moves[event.key];
          if (by !== undefined) {
            const next: [number, number] = [Math.max(0, Math.min(rowCount - 1, row + by[0])), Math.max(0, Math.min(columns - 1, column + by[1]))];
            if (cells[next[0]]?.[next[1]] != null) setCursor(next);
          } else if (event.key === "Enter") {
            if (value != null) props.onEnter(row, column);
          } else if (event.key === "Backspace") props.onLeave();
          else return;
          event.preventDefault();
        }}
      />
      <p class="heat-now" role="status">{said}</p>
      <div class="heat-legend" aria-hidden="true">
        <span>Due in a cell:</span>
        {LEGEND.map((name, step) => <span key={name}><i class={`h${step}`} />{name}</span>)}
      </div>
    </div>
  );
}
