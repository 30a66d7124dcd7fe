import { button, element, icon, whileAtTheEnd } from "./dom.js";
import { Timing, duration } from "./timing.js";
import { Waveform } from "./waveform.js";
import { drawWaterfall } from "./waterfall.js";
import { wavFile } from "./wav.js";

/** One question and its answer: what is kept of them, and how the page shows them. */
export class Exchange {
  /** The question, as a message's content. */
  content = [];
  text = "";
  samples = [];
  sampleRate = 0;
  timing = new Timing();
  #usage = null;
  #gaps = 0;
  #played = 0;
  #finishReason = null;
  #unseen = "";
  #refreshing = false;

  /** `replay(exchange)` is called when its speech shall be played or silenced. */
  constructor(question, attachments, replay) {
    this.#show(question, attachments, replay);
  }

  /** Takes a piece of the answer, as `chat` gives it. */
  take({ text, samples, sampleRate, finishReason, stages, usage }) {
    if (text !== undefined) {
      this.timing.mark("text");
      this.text += text;
      this.#unseen += text;
    } else if (samples) {
      this.timing.mark("speech");
      this.samples.push(samples);
      this.sampleRate = sampleRate;
      this.waveform.push(samples, sampleRate);
    } else if (finishReason) this.#finishReason = finishReason;
    else if (stages) this.timing.placeStages(stages);
    else if (usage) this.#usage = usage;
    this.#refresh();
  }

  /** The answer is over; `problem` says why where it is not whole. */
  finish(problem, failed = false) {
    this.timing.mark("end");
    this.answer.setAttribute("aria-busy", "false");
    this.element.classList.remove("running");
    this.waveform.end();
    if (!problem && this.#finishReason === "length") problem = "Cut off at the greatest number of tokens.";
    whileAtTheEnd(() => {
      this.save.hidden = !this.samples.length;
      this.note.textContent = problem ?? "";
      this.note.classList.toggle("failed", failed);
      this.details.hidden = failed && !this.text && !this.samples.length;
      this.#update();
    });
  }

  /** Takes what the player's worklet says of this speech. */
  heard({ started, played, gaps, done, stopped }) {
    if (started && !this.#played) this.timing.mark("playback");
    if (played !== undefined) {
      if (played > this.#played) this.timing.mark("playback");
      this.#played = Math.max(this.#played, played);
      this.#gaps = Math.max(this.#gaps, gaps);
      this.waveform.played = played;
      this.#tellClock(played);
    }
    this.playing = !done && !stopped;
    this.#refresh();
  }

  /** Frames of speech that came so far. */
  get length() {
    return this.samples.reduce((sum, piece) => sum + piece.length, 0);
  }

  get playing() {
    return this.play.classList.contains("playing");
  }

  set playing(playing) {
    const label = playing ? "Stop playing" : "Play again";
    this.play.classList.toggle("playing", playing);
    this.play.replaceChildren(icon(playing ? "stop" : "play"));
    this.play.setAttribute("aria-label", label);
    this.play.title = label;
  }

  #show(question, attachments, replay) {
    const media = attachments.map((attachment) => attachment.preview());
    this.answer = element("p", { className: "text" });
    this.answer.setAttribute("aria-live", "polite");
    this.answer.setAttribute("aria-busy", "true");
    this.note = element("p", { className: "note" });
    this.note.setAttribute("role", "status");
    this.sound = this.#soundBar(replay);
    this.summary = element("summary");
    this.list = element("ol", { className: "waterfall" });
    this.details = element("details", { className: "timing", open: true }, this.summary, this.list);
    this.element = element(
      "article",
      { className: "exchange running" },
      element(
        "div",
        { className: "question" },
        element("h2", { className: "unseen", textContent: "You" }),
        ...(media.length ? [element("div", { className: "media" }, ...media)] : []),
        ...(question ? [element("p", { className: "text", textContent: question })] : []),
      ),
      element(
        "div",
        { className: "answer" },
        element("h2", { className: "unseen", textContent: "Answer" }),
        this.answer,
        this.sound,
        this.note,
        this.details,
      ),
    );
    this.#update();
  }

  #soundBar(replay) {
    const canvas = element("canvas");
    canvas.setAttribute("aria-hidden", "true");
    this.waveform = new Waveform(canvas);
    this.play = button("play", "Play again", () => replay(this), true);
    this.clock = element("span", { className: "clock" });
    this.save = button("save", "Save as WAV", () => this.#saveWav(), true);
    this.save.hidden = true;
    this.playing = true;
    return element("div", { className: "sound", hidden: true }, this.play, canvas, this.clock, this.save);
  }

  #saveWav() {
    const url = URL.createObjectURL(wavFile(this.samples, this.sampleRate));
    element("a", { href: url, download: "answer.wav" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  /** Bring the page up to date with its next frame: pieces may come faster than it can be laid out. */
  #refresh() {
    if (this.#refreshing) return;
    this.#refreshing = true;
    requestAnimationFrame(() => {
      this.#refreshing = false;
      whileAtTheEnd(() => this.#update());
    });
  }

  #update() {
    if (this.#unseen) this.answer.append(this.#unseen);
    this.#unseen = "";
    this.sound.hidden = !this.samples.length;
    this.#tellTimes();
  }

  #tellClock(played) {
    this.clock.textContent = [played, this.length].map((frames) => clock(frames / this.sampleRate)).join(" / ");
  }

  #tellTimes() {
    const { timing } = this;
    const facts = [
      ["First text", timing.first("text")],
      ["First sound", timing.first("speech")],
      ["Whole answer", timing.first("end")],
      ["Speech", this.sampleRate ? (1000 * this.length) / this.sampleRate : undefined],
    ]
      .filter(([, time]) => time !== undefined)
      .map(([name, time]) => [name, duration(time)]);
    if (this.#gaps) facts.push(["Gaps", this.#gaps]);
    if (this.#usage) facts.push(["Tokens", `${this.#usage.prompt_tokens} in, ${this.#usage.completion_tokens} out`]);
    const shown = facts.map(([name, value]) =>
      element("span", { className: "fact" }, `${name} `, element("b", { textContent: value })),
    );
    this.summary.replaceChildren(...(shown.length ? shown : ["Waiting for the answer"]));
    this.list.hidden = !shown.length;
    drawWaterfall(this.list, timing.bars());
  }
}

function clock(seconds) {
  return `${Math.floor(seconds / 60)}:${(Math.floor(10 * (seconds % 60)) / 10).toFixed(1).padStart(4, "0")}`;
}
