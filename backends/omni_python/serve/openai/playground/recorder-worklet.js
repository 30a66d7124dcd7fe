/** Sends what it hears on, mixed to one channel, 1024 frames at a time. */
class Recorder extends AudioWorkletProcessor {
  #block = new Float32Array(1024);
  #filled = 0;

  process([channels]) {
    const frames = channels[0]?.length ?? 0;
    for (let i = 0; i < frames; i++) {
      this.#block[this.#filled++] = channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length;
      if (this.#filled === this.#block.length) {
        this.port.postMessage(this.#block.slice());
        this.#filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("recorder", Recorder);
