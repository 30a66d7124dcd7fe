import { element } from "./dom.js";
import { duration } from "./timing.js";

const TICKS = 4;

/**
 * Draws bars {name, kind, from, to} (milliseconds) into a list, on one scale of round numbers. A stage's bar is pale until
 * its `first` output; playback, which goes on long after the request, is cut where the scale ends.
 */
export function drawWaterfall(list, bars) {
  const last = Math.max(1, ...bars.map(({ kind, from, to }) => (kind === "playback" ? 1.1 * from : to)));
  const step = roundStep(last / TICKS);
  const end = step * Math.ceil(last / step);
  list.replaceChildren(...bars.map((bar) => row(bar, end)), axis(step, end));
}

function row({ name, kind, from, first, to }, end) {
  const track = element("span", { className: "track" }, part(`of-${kind}`, from, to, end));
  if (first !== undefined) track.append(part("of-output", first, to, end));
  track.setAttribute("aria-hidden", "true");
  const times = [...new Set([from, to].map(duration))].join(" – ");
  return element("li", {}, element("span", { className: "name", textContent: name }), track, element("span", { className: "time", textContent: times }));
}

function part(kind, from, to, end) {
  const bar = element("span", { className: `bar ${kind}` });
  bar.classList.toggle("cut", to > end);
  bar.style.left = `${(100 * from) / end}%`;
  bar.style.width = `${(100 * (Math.min(to, end) - from)) / end}%`;
  return bar;
}

function axis(step, end) {
  const track = element("span", { className: "track" });
  for (let time = 0; time <= end + step / 2; time += step) {
    const tick = element("span", { className: "tick", textContent: roundTime(time) });
    tick.style.left = `${(100 * time) / end}%`;
    track.append(tick);
  }
  const row = element("li", { className: "axis" }, element("span"), track, element("span"));
  row.setAttribute("aria-hidden", "true");
  return row;
}

/** 0, 250 ms, 1.5 s. */
function roundTime(time) {
  if (!time) return "0";
  return time < 1000 ? `${time} ms` : `${time / 1000} s`;
}

/** The next of 1, 2, 2.5, 5 times a power of ten. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= least);
}
