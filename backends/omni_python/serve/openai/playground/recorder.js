import { int16, wavFile } from "./wav.js";

/** Records the microphone from `start` until `stop`. */
export class Recorder {
  #stream;
  #context;
  #blocks = [];

  /** Asks for the microphone; `heard(seconds, peak)` is called as it records. Throws an Error that says why it cannot. */
  static async start(heard) {
    if (!navigator.mediaDevices) throw new Error("Browsers lend the microphone only to https and localhost pages.");
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    } catch (error) {
      throw new Error(error.name === "NotAllowedError" ? "The microphone was not allowed." : "There is no microphone.");
    }
    const recorder = new Recorder();
    await recorder.#listen(stream, heard);
    return recorder;
  }

  /** The recording as a WAV file at the microphone's own rate, and its seconds. */
  stop() {
    const { sampleRate } = this.#context;
    for (const track of this.#stream.getTracks()) track.stop();
    this.#context.close();
    return { file: wavFile(this.#blocks, sampleRate), seconds: this.#seconds() };
  }

  async #listen(stream, heard) {
    this.#stream = stream;
    this.#context = new AudioContext();
    await this.#context.audioWorklet.addModule("/playground/recorder-worklet.js");
    const node = new AudioWorkletNode(this.#context, "recorder", { outputChannelCount: [1] });
    node.port.onmessage = ({ data }) => {
      this.#blocks.push(int16(data));
      heard(this.#seconds(), data.reduce((peak, sample) => Math.max(peak, Math.abs(sample)), 0));
    };
    // The node's output is silence; connected, every browser runs it.
    this.#context.createMediaStreamSource(stream).connect(node).connect(this.#context.destination);
  }

  #seconds() {
    return this.#blocks.reduce((sum, block) => sum + block.length, 0) / this.#context.sampleRate;
  }
}
