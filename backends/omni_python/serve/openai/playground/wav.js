/** A 16-bit mono WAV file of Int16Arrays. */
export function wavFile(pieces, sampleRate) {
  const size = pieces.reduce((sum, piece) => sum + piece.byteLength, 0);
  const header = new DataView(new ArrayBuffer(44));
  const text = (at, letters) => [...letters].forEach((letter, i) => header.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  header.setUint32(4, 36 + size, true);
  text(8, "WAVEfmt ");
  header.setUint32(16, 16, true);
  header.setUint16(20, 1, true);
  header.setUint16(22, 1, true);
  header.setUint32(24, sampleRate, true);
  header.setUint32(28, 2 * sampleRate, true);
  header.setUint16(32, 2, true);
  header.setUint16(34, 16, true);
  text(36, "data");
  header.setUint32(40, size, true);
  return new Blob([header, ...pieces], { type: "audio/wav" });
}

/** Floats in -1..1 as 16-bit samples; what is beyond is clipped. */
export function int16(samples) {
  return Int16Array.from(samples, (sample) => Math.round(Math.max(-1, Math.min(1, sample)) * 32767));
}

/** 16-bit samples as floats in -1..1, on the scale that the server (and `int16`) made them with. */
export function floats(samples) {
  return Float32Array.from(samples, (sample) => sample / 32767);
}

/** Reads a 16-bit mono WAV stream in pieces of any size. */
export class WavReader {
  sampleRate = 0;
  #pending = new Uint8Array();

  /** The samples that are complete with these bytes. */
  read(bytes) {
    let data = new Uint8Array(this.#pending.length + bytes.length);
    data.set(this.#pending);
    data.set(bytes, this.#pending.length);
    if (!this.sampleRate) data = this.#afterHeader(data);
    const whole = this.sampleRate ? data.length & ~1 : 0;
    this.#pending = data.slice(whole);
    const view = new DataView(data.buffer, data.byteOffset, whole);
    return Int16Array.from({ length: whole / 2 }, (_, i) => view.getInt16(2 * i, true));
  }

  /** Walks over the chunks of the file up to the samples; `data` itself while those have not come. */
  #afterHeader(data) {
    const view = new DataView(data.buffer);
    let sampleRate = 0;
    for (let at = 12; at + 8 <= data.length; ) {
      const name = String.fromCharCode(...data.subarray(at, at + 4));
      if (name === "data") {
        this.sampleRate = sampleRate;
        return data.slice(at + 8);
      }
      if (name === "fmt " && at + 16 <= data.length) sampleRate = view.getUint32(at + 12, true);
      at += 8 + view.getUint32(at + 4, true);
    }
    return data;
  }
}
