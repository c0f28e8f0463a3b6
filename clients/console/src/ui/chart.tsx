/** A line chart over time: uPlot, in the colours of the theme. */
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { colour, isDark } from "../theme.js";

export interface Series {
  name: string;
  values: readonly (number | null)[];
  /** Which of the five colours; 1 to 5. */
  colour: number;
  /** Lag: told apart from rates without colour. */
  dash?: boolean;
  fill?: boolean;
}

export interface ChartProps {
  label: string;
  /** Epoch ms of each value. */
  times: readonly number[];
  series: Series[];
  format: (value: number) => string;
  height?: number;
  /** Of bytes: the lines of the grid are at powers of two. */
  isBinary?: boolean;
}

/** A server that has just started: its first seconds are not stretched over all of the width. */
const SPAN_MIN_S = 120;
const POWERS_OF_TWO = Array.from({ length: 50 }, (_, power) => 2 ** power);
const AXIS_FONT = "12px ui-sans-serif, system-ui, sans-serif";

export function Chart(props: ChartProps): JSX.Element {
  const { series, times, format, height = 160 } = props;
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const dark = isDark.value;
  const shape = series.map(({ name, colour: number, dash }) => `${name}${number}${dash === true}`).join() + dark;
  const formatter = useRef(format);
  formatter.current = format;

  useEffect(() => {
    const element = box.current!;
    const axis = { stroke: colour("muted"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, font: AXIS_FONT };
    const drawn = new uPlot(
      {
        width: element.clientWidth,
        height,
        padding: [8, 28, 0, 0],
        cursor: { y: false, points: { size: 6 } },
        legend: { show: false },
        scales: { x: { range: (_plot, min, max) => [Math.min(min, max - SPAN_MIN_S), max] }, y: { range: (_plot, _min, max) => [0, max > 0 ? max * 1.1 : 1] } },
        axes: [
          { ...axis, size: 24, space: 64, values: (_plot, splits, _axis, _space, stepS) => splits.map((at) => new Date(at * 1000).toTimeString().slice(0, stepS < 60 ? 8 : 5)) },
          { ...axis, size: 68, space: 36, ...(props.isBinary === true ? { incrs: POWERS_OF_TWO } : {}), values: (_plot, splits) => splits.map((value) => formatter.current(value)) },
        ],
        series: [
          {},
          ...series.map(({ name, colour: number, dash, fill }) => ({
            label: name,
            stroke: colour(`series-${number}`),
            width: 1.75,
            points: { show: false },
            ...(dash === true ? { dash: [6, 4] } : {}),
            ...(fill === true ? { fill: `${colour(`series-${number}`)}22` } : {}),
          })),
        ],
      },
      dataOf(times, series),
      element,
    );
    plot.current = drawn;
    const observer = new ResizeObserver(() => drawn.setSize({ width: element.clientWidth, height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      drawn.destroy();
      plot.current = null;
    };
  }, [shape, height]);

  useEffect(() => {
    plot.current?.setData(dataOf(times, series));
  }, [times, series]);

  const newest = series.map(({ name, values }) => `${name} ${values.at(-1) == null ? "not known" : format(values.at(-1)!)}`).join(", ");
  return (
    <figure class="chart" role="img" aria-label={`${props.label}: ${newest}`}>
      <figcaption aria-hidden="true">
        <span>{props.label}</span>
        {series.map(({ name, values, colour: number, dash }) => (
          <span key={name} class="legend">
            <svg width="18" height="8" aria-hidden="true">
              <line x1="0" y1="4" x2="18" y2="4" class={`series-${number}`} stroke-width="2" stroke-dasharray={dash === true ? "5 3" : undefined} />
            </svg>
            {name} <b>{values.at(-1) == null ? "–" : format(values.at(-1)!)}</b>
          </span>
        ))}
      </figcaption>
      <div ref={box} class="plot" style={{ height: `${height}px` }} />
    </figure>
  );
}

function dataOf(times: readonly number[], series: Series[]): uPlot.AlignedData {
  return [times.map((at) => at / 1000), ...series.map(({ values }) => [...values])] as uPlot.AlignedData;
}
