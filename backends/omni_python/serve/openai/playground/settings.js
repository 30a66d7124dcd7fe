import { byId, element } from "./dom.js";
import { models, voices } from "./api.js";

const STORE = "omni-playground";
const NUMBERS = ["temperature", "top_p", "seed", "max_completion_tokens"];

/** The form of a request's settings; what the user chose is remembered in the browser. */
export class Settings {
  #form = byId("settings-form");

  /** Asks the server what there is. Throws an Error where that is nothing yet. */
  async load() {
    const names = await models();
    if (!names.length) throw new Error("The server has no model that is ready.");
    this.#form.model.replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
    this.#restore();
    if (!this.#form.model.value) this.#form.model.value = names[0];
    this.#form.addEventListener("change", () => this.#save());
    this.#form.addEventListener("reset", () => setTimeout(() => this.#save()));
    this.#form.model.addEventListener("change", () => this.#offerVoices());
    await this.#offerVoices();
  }

  /** Fields of a request's body, without its messages. Throws an Error for a field that is not right. */
  body() {
    const form = this.#form;
    if (!form.reportValidity()) throw new Error("One of the settings is not right.");
    const speaks = form.modalities.value === "speech";
    const body = { model: form.model.value, modalities: speaks ? ["text", "audio"] : ["text"] };
    if (speaks) body.audio = { format: "wav", ...(form.voice.value.trim() && { voice: form.voice.value.trim() }) };
    for (const name of NUMBERS) {
      if (form[name].value !== "") body[name] = form[name].valueAsNumber;
    }
    if (speaks && "seed" in body) body.talker = { seed: body.seed };
    return merged(body, this.#more());
  }

  /** The system message, as a list that is empty without one. */
  system() {
    const content = this.#form.system.value.trim();
    return content ? [{ role: "system", content }] : [];
  }

  #more() {
    const text = this.#form.more.value.trim();
    if (!text) return {};
    try {
      const more = JSON.parse(text);
      if (more && typeof more === "object" && !Array.isArray(more)) return more;
    } catch {
      // told below
    }
    throw new Error('More fields must be a JSON object, such as {"top_k": 20}.');
  }

  /** A list of the model's voices, where the server has one; else any name can be typed. */
  async #offerVoices() {
    const known = await voices(this.#form.model.value);
    const before = this.#form.voice;
    const field = known
      ? element("select", {}, option("", defaultVoice(known)), ...known.map(({ id, name }) => option(id, name)))
      : element("input", { type: "text", placeholder: "default", autocomplete: "off", spellcheck: false });
    Object.assign(field, { id: before.id, name: before.name });
    const value = before.value || this.#stored().voice || "";
    before.replaceWith(field);
    field.value = value;
    if (field.value !== value) field.value = "";
  }

  #stored() {
    try {
      return JSON.parse(localStorage.getItem(STORE)) ?? {};
    } catch {
      return {};
    }
  }

  #restore() {
    for (const [name, value] of Object.entries(this.#stored())) {
      if (name in this.#form.elements && name !== "voice") this.#form[name].value = value;
    }
  }

  #save() {
    try {
      localStorage.setItem(STORE, JSON.stringify(Object.fromEntries(new FormData(this.#form))));
    } catch {
      // a browser that keeps nothing
    }
  }
}

function defaultVoice(known) {
  const voice = known.find((voice) => voice.default);
  return voice ? `Default (${voice.name})` : "Default";
}

function option(value, textContent) {
  return element("option", { value, textContent });
}

/** `more` laid over `body`, also inside of objects. */
function merged(body, more) {
  const result = { ...body };
  for (const [name, value] of Object.entries(more)) {
    const both = [body[name], value].every((one) => one && typeof one === "object" && !Array.isArray(one));
    result[name] = both ? merged(body[name], value) : value;
  }
  return result;
}
