import { Exchange } from "./exchange.js";
import { chat } from "./api.js";
import { byId, scrollToEnd } from "./dom.js";

const USUAL_RATE = 24000;

/** The exchanges so far, and the request that runs. */
export class Conversation {
  #list = byId("conversation");
  #exchanges = [];
  #attachments = [];
  #running = null;
  #player;
  #changed;

  /** `changed` is called whenever `streaming` or `busy` may have changed. */
  constructor(player, changed) {
    this.#player = player;
    this.#changed = changed;
  }

  /** An answer is coming. */
  get streaming() {
    return this.#running !== null;
  }

  /** An answer is coming, or is heard. */
  get busy() {
    return this.streaming || this.#player.playing;
  }

  /** Ask with these settings, and show the answer until it is over. */
  async ask(question, attachments, settings) {
    this.stop();
    const running = new AbortController();
    this.#running = running;
    this.#player.prepare(USUAL_RATE).catch(() => {});
    this.#attachments.push(...attachments);
    const history = this.#history();
    const exchange = this.#add(new Exchange(question, attachments, (one) => this.#replay(one)));
    this.#changed();
    try {
      exchange.content = await contentOf(question, attachments);
      const messages = [...settings.system(), ...history, { role: "user", content: exchange.content }];
      await this.#stream({ ...settings.body(), messages }, exchange, running.signal);
      exchange.finish();
    } catch (error) {
      const stopped = running.signal.aborted;
      exchange.finish(stopped ? "Stopped." : error.message, !stopped);
    }
    if (this.#running === running) this.#running = null;
    this.#changed();
  }

  /** End the answer that is coming, and be silent. */
  stop() {
    this.#running?.abort();
    this.#player.stop();
  }

  /** Forget everything that was said. */
  clear() {
    this.stop();
    this.#attachments.splice(0).forEach((attachment) => attachment.forget());
    this.#exchanges = [];
    this.#list.replaceChildren();
    this.#changed();
  }

  async #stream(body, exchange, signal) {
    let utterance = null;
    try {
      for await (const piece of chat(body, signal)) {
        if (piece.samples) {
          utterance ??= await this.#speak(exchange, piece.sampleRate);
          signal.throwIfAborted();
          utterance.push(piece.samples);
        }
        exchange.take(piece);
      }
    } finally {
      utterance?.end();
    }
  }

  async #speak(exchange, sampleRate) {
    const utterance = await this.#player.utterance(sampleRate, (message) => {
      exchange.heard(message);
      this.#changed();
    });
    this.#changed();
    return utterance;
  }

  async #replay(exchange) {
    if (exchange.playing) return this.#player.stop();
    const utterance = await this.#speak(exchange, exchange.sampleRate);
    exchange.playing = true;
    exchange.samples.forEach((piece) => utterance.push(piece));
    utterance.end();
  }

  /** Earlier questions with their answers; those that were never answered are left out. */
  #history() {
    return this.#exchanges
      .filter((exchange) => exchange.text)
      .flatMap(({ content, text }) => [
        { role: "user", content },
        { role: "assistant", content: text },
      ]);
  }

  #add(exchange) {
    for (const earlier of this.#exchanges) earlier.details.open = false;
    this.#exchanges.push(exchange);
    this.#list.append(exchange.element);
    scrollToEnd();
    return exchange;
  }
}

async function contentOf(question, attachments) {
  const parts = await Promise.all(attachments.map((attachment) => attachment.part()));
  return question ? [...parts, { type: "text", text: question }] : parts;
}
