import { floats } from "./wav.js";

const LEAD_S = 0.1;
/** Sound is still on its way to the loudspeaker when the worklet has handed over the last frame. */
const LINGER_MS = 1000;

/**
 * Plays one utterance at a time. The audio context runs at the speech's own sample rate, so that the browser resamples,
 * if at all, one continuous signal behind it.
 */
export class Player {
  #context = null;
  #utterance = null;

  /** Make ready for speech of this rate. To be called while the user presses something: browsers want that for sound. */
  async prepare(sampleRate) {
    if (this.#context?.sampleRate !== sampleRate) {
      this.stop();
      this.#context?.close();
      this.#context = new AudioContext({ sampleRate });
      this.#context.loaded = this.#context.audioWorklet.addModule("/playground/player-worklet.js");
    }
    this.#context.resume();
    await this.#context.loaded;
  }

  /** Begin to speak; what spoke before stops. `report` gets the worklet's messages, and {stopped: true}. */
  async utterance(sampleRate, report) {
    await this.prepare(sampleRate);
    this.stop();
    const context = this.#context;
    const utterance = new Utterance(context, (message) => {
      const over = message.done || message.stopped;
      if (over && this.#utterance === utterance) this.#utterance = null;
      if (over) setTimeout(() => this.#rest(context), LINGER_MS);
      report(message);
    });
    this.#utterance = utterance;
    return utterance;
  }

  get playing() {
    return this.#utterance !== null;
  }

  stop() {
    this.#utterance?.stop();
  }

  #rest(context) {
    if (!this.playing && context.state === "running") context.suspend();
  }
}

class Utterance {
  #node;
  #report;
  #over = false;

  constructor(context, report) {
    const record = recording !== null;
    this.#report = report;
    this.#node = new AudioWorkletNode(context, "player", {
      numberOfInputs: 0,
      outputChannelCount: [1],
      processorOptions: { lead: Math.round(LEAD_S * context.sampleRate), record },
    });
    this.#node.port.onmessage = ({ data }) => {
      if (data.frames) recording.push(data.frames);
      else if (!this.#over) this.#tell(data);
    };
    this.#node.connect(context.destination);
  }

  /** The next 16-bit samples. */
  push(samples) {
    const converted = floats(samples);
    this.#node.port.postMessage({ samples: converted }, [converted.buffer]);
  }

  /** No more samples will come. */
  end() {
    this.#node.port.postMessage({ end: true });
  }

  stop() {
    if (this.#over) return;
    this.#node.port.postMessage({ stop: true });
    this.#tell({ stopped: true });
  }

  #tell(message) {
    this.#over = Boolean(message.done || message.stopped);
    if (this.#over) this.#node.disconnect();
    this.#report(message);
  }
}

/** With `?record` in the page's address: every frame that was handed to the audio output, for whoever wants to look. */
const recording = new URLSearchParams(location.search).has("record") ? [] : null;
if (recording) globalThis.playedFrames = recording;
