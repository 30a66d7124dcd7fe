import { Attachment } from "./attachments.js";
import { Recorder } from "./recorder.js";
import { button, byId, element, icon } from "./dom.js";

/** Where a message is written, spoken and put together. */
export class Composer {
  #text = byId("message");
  #list = byId("attachments");
  #record = byId("record");
  #attachments = [];
  #recorder = null;
  #tell;

  /** `tell(message)` shows what went wrong, or what happens. */
  constructor(tell) {
    this.#tell = tell;
    const files = byId("files");
    byId("attach").onclick = () => files.click();
    files.onchange = () => {
      this.attach(files.files);
      files.value = "";
    };
    this.#record.onclick = () => (this.#recorder ? this.finishRecording() : this.#startRecording());
    byId("discard").onclick = () => this.discardRecording();
    this.#text.addEventListener("input", () => this.#fit());
    this.#text.addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.attach(event.clipboardData.files);
    });
    this.#acceptDrops();
  }

  get recording() {
    return this.#recorder !== null;
  }

  focus() {
    this.#text.focus();
  }

  /** Write a text for the user to send. */
  write(text) {
    this.#text.value = text;
    this.#fit();
    this.focus();
  }

  /** What was put together, which is then gone from here; null where it is nothing. */
  take() {
    this.finishRecording();
    const text = this.#text.value.trim();
    if (!text && !this.#attachments.length) return null;
    const attachments = this.#attachments;
    this.#attachments = [];
    this.#list.replaceChildren();
    this.#text.value = "";
    this.#fit();
    return { text, attachments };
  }

  attach(files) {
    for (const file of files) {
      try {
        this.#add(new Attachment(file), file.name);
      } catch (error) {
        this.#tell(error.message);
      }
    }
    this.focus();
  }

  /** End a recording and keep it. */
  finishRecording() {
    if (!this.#recorder) return;
    const { file, seconds } = this.#endRecording();
    const name = `Recording, ${seconds.toFixed(1)} s`;
    if (seconds) this.#add(new Attachment(file, name), name);
    this.focus();
  }

  discardRecording() {
    if (this.#recorder) this.#endRecording();
    this.focus();
  }

  async #startRecording() {
    this.#tell("");
    this.#record.disabled = true;
    try {
      this.#recorder = await Recorder.start((seconds, peak) => {
        byId("recorded").textContent = `${seconds.toFixed(1)} s`;
        byId("level").style.setProperty("--level", Math.min(1, 1.5 * Math.sqrt(peak)));
      });
      this.#showRecording(true);
    } catch (error) {
      this.#tell(error.message);
    }
    this.#record.disabled = false;
    this.#record.focus();
  }

  #endRecording() {
    const recording = this.#recorder.stop();
    this.#recorder = null;
    this.#showRecording(false);
    return recording;
  }

  #showRecording(on) {
    byId("recording").hidden = !on;
    const label = on ? "Finish recording" : "Record speech";
    this.#record.setAttribute("aria-pressed", on);
    this.#record.setAttribute("aria-label", label);
    this.#record.title = label;
  }

  #add(attachment, label) {
    const remove = button("close", `Remove ${label}`, () => this.#remove(attachment, item), true);
    const sign = attachment.kind === "image" ? element("img", { src: attachment.url, alt: "" }) : icon(attachment.kind);
    sign.addEventListener("error", () => sign.remove(), { once: true }); // no browser shows all that a server takes
    const item = element("li", {}, sign, element("span", { className: "name", textContent: label }), remove);
    this.#attachments.push(attachment);
    this.#list.append(item);
  }

  #remove(attachment, item) {
    attachment.forget();
    this.#attachments = this.#attachments.filter((other) => other !== attachment);
    item.remove();
    this.focus();
  }

  #fit() {
    this.#text.style.height = "auto";
    this.#text.style.height = `${this.#text.scrollHeight}px`;
  }

  #acceptDrops() {
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    const mark = (on) => document.body.classList.toggle("dropping", on);
    addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      mark(true);
    });
    addEventListener("dragleave", (event) => event.relatedTarget || mark(false));
    addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      mark(false);
      this.attach(event.dataTransfer.files);
    });
  }
}
