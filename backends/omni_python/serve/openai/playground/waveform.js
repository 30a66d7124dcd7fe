const BAR = 3;
const SPACE = 2;
const LEAST_SECONDS = 4;

/** The speech so far as bars of its loudness on a canvas; the part that was played is in the accent colour. */
export class Waveform {
  #canvas;
  #pieces = [];
  #length = 0;
  #played = 0;
  #sampleRate = 24000;
  #whole = false;
  #drawing = false;

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.#draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  push(samples, sampleRate) {
    this.#pieces.push(samples);
    this.#length += samples.length;
    this.#sampleRate = sampleRate;
    this.#draw();
  }

  /** Frames that were played. */
  set played(frames) {
    this.#played = frames;
    this.#draw();
  }

  /** All there is has come: from now on it fills the canvas. */
  end() {
    this.#whole = true;
    this.#draw();
  }

  #draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      this.#paint();
    });
  }

  #paint() {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const ratio = devicePixelRatio;
    Object.assign(this.#canvas, { width: width * ratio, height: height * ratio });
    const style = getComputedStyle(this.#canvas);
    const context = this.#canvas.getContext("2d");
    context.scale(ratio, ratio);
    const bars = Math.floor((width + SPACE) / (BAR + SPACE));
    const shown = this.#whole ? this.#length : Math.max(this.#length, LEAST_SECONDS * this.#sampleRate);
    const peaks = this.#peaks(bars, shown);
    peaks.forEach((peak, i) => {
      const tall = Math.max(BAR, Math.sqrt(peak) * height);
      context.fillStyle = ((i + 1) * shown) / bars <= this.#played ? style.color : style.borderTopColor;
      context.beginPath();
      context.roundRect(i * (BAR + SPACE), (height - tall) / 2, BAR, tall, BAR / 2);
      context.fill();
    });
  }

  /** The greatest absolute value, in 0..1, of each bar's share of `shown` samples. */
  #peaks(bars, shown) {
    const peaks = new Float32Array(bars);
    let at = 0;
    for (const piece of this.#pieces) {
      for (let i = 0; i < piece.length; i += 4) {
        const bar = Math.floor(((at + i) * bars) / shown);
        const size = Math.abs(piece[i]) / 32768;
        if (size > peaks[bar]) peaks[bar] = size;
      }
      at += piece.length;
    }
    return peaks;
  }
}
