/**
 * Plays one utterance, frame after frame as it was pushed. It begins once `lead` frames are there (or all there will be),
 * and waits for as many again where the stream falls behind; such a gap is told, never hidden.
 *
 * In: {samples: Float32Array}, {end: true}, {stop: true}.
 * Out: {played, gaps} now and then, {started: true}, {done: true}; with `record`, {frames} that were handed to the output.
 */
class Player extends AudioWorkletProcessor {
  #queue = [];
  #offset = 0;
  #buffered = 0;
  #played = 0;
  #told = 0;
  #gaps = 0;
  #waiting = true;
  #ended = false;
  #stopped = false;

  constructor({ processorOptions: { lead, record } }) {
    super();
    this.lead = lead;
    this.record = record;
    this.port.onmessage = ({ data }) => {
      if (data.samples) {
        this.#queue.push(data.samples);
        this.#buffered += data.samples.length;
      }
      if (data.end) this.#ended = true;
      if (data.stop) this.#stopped = true;
    };
  }

  process(_, [[output]]) {
    if (this.#stopped) return false;
    if (this.#waiting && !this.#enough()) return true;
    if (this.#waiting) this.#begin();
    const filled = this.#fill(output);
    this.#played += filled;
    if (this.record && filled) this.port.postMessage({ frames: output.slice(0, filled) });
    const done = this.#ended && !this.#buffered;
    this.#waiting = !done && filled < output.length;
    if (done || this.#played - this.#told >= 1024) {
      this.#told = this.#played;
      this.port.postMessage({ played: this.#played, gaps: this.#gaps, done });
    }
    return !done;
  }

  #begin() {
    if (!this.#played) this.port.postMessage({ started: true });
    else if (this.#buffered) this.#gaps += 1;
  }

  #enough() {
    return this.#ended || this.#buffered >= this.lead;
  }

  #fill(output) {
    let filled = 0;
    while (filled < output.length && this.#queue.length) {
      const piece = this.#queue[0].subarray(this.#offset, this.#offset + output.length - filled);
      output.set(piece, filled);
      filled += piece.length;
      this.#offset += piece.length;
      if (this.#offset === this.#queue[0].length) {
        this.#queue.shift();
        this.#offset = 0;
      }
    }
    this.#buffered -= filled;
    return filled;
  }
}

registerProcessor("player", Player);
