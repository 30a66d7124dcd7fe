/** When the parts of one request came, in milliseconds since it was sent. */
export class Timing {
  #start = performance.now();
  marks = {};

  /** The first and the last time that something happened. */
  mark(name) {
    const now = performance.now() - this.#start;
    const mark = (this.marks[name] ??= { first: now, last: now });
    mark.last = now;
  }

  first(name) {
    return this.marks[name]?.first;
  }

  /** The waterfall's bars: the server's stages where it told them, between what the page saw itself. */
  bars(stages = []) {
    const { text, speech, playback, end } = this.marks;
    const now = performance.now() - this.#start;
    const seen = [text?.first, speech?.first, end?.first].filter((time) => time !== undefined);
    const bars = [{ name: "Wait", kind: "wait", from: 0, to: seen.length ? Math.min(...seen) : now }, ...stages];
    if (text) bars.push({ name: "Text", kind: "text", from: text.first, to: text.last });
    if (speech) bars.push({ name: "Speech", kind: "speech", from: speech.first, to: speech.last });
    if (playback) bars.push({ name: "Playback", kind: "playback", from: playback.first, to: playback.last });
    return bars;
  }
}

/** 87 ms, 1.24 s, 72 s. */
export function duration(milliseconds) {
  if (milliseconds < 999.5) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  return `${seconds < 9.995 ? seconds.toFixed(2) : seconds < 99.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
}
