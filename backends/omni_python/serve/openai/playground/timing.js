/** When the parts of one request came, in milliseconds since it was sent. */
export class Timing {
  #start = performance.now();
  #stages = [];
  marks = {};

  /** The first and the last time that something happened. */
  mark(name) {
    const now = this.#now();
    const mark = (this.marks[name] ??= { first: now, last: now });
    mark.last = now;
  }

  first(name) {
    return this.marks[name]?.first;
  }

  /**
   * When the server's stages worked: {stage, start, first, end} in seconds since it took the request. When that was, the
   * page cannot know; these came with the last of the answer, so the last stage is taken to have ended now.
   */
  placeStages(stages) {
    const shift = Math.max(0, this.#now() - 1000 * Math.max(...stages.map((stage) => stage.end)));
    const place = (seconds) => shift + 1000 * seconds;
    this.#stages = stages.map(({ stage, start, first, end }) => {
      return { name: stage, kind: "stage", from: place(start), first: place(first), to: place(end) };
    });
  }

  /** The waterfall's bars: the server's stages where it told them, and what the page saw itself. */
  bars() {
    const { text, speech, playback, end } = this.marks;
    const seen = [text, speech, end].filter(Boolean).map((mark) => mark.first);
    const bars = [{ name: "Wait", kind: "wait", from: 0, to: Math.min(...seen, this.#now()) }, ...this.#stages];
    if (text) bars.push({ name: "Text", kind: "text", from: text.first, to: text.last });
    if (speech) bars.push({ name: "Speech", kind: "speech", from: speech.first, to: speech.last });
    if (playback) bars.push({ name: "Playback", kind: "playback", from: playback.first, to: playback.last });
    return bars;
  }

  #now() {
    return performance.now() - this.#start;
  }
}

/** 87 ms, 1.24 s, 72 s. */
export function duration(milliseconds) {
  if (milliseconds < 999.5) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  return `${seconds < 9.995 ? seconds.toFixed(2) : seconds < 99.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
}
