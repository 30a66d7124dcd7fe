const EXTENSIONS = {
  audio: ["wav", "mp3", "flac", "ogg", "opus", "m4a", "aac", "aiff"],
  image: ["png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff"],
  video: ["mp4", "mov", "webm", "mkv", "avi"],
};

/** A sound, picture or video that goes with a message. */
export class Attachment {
  /** Throws an Error for a file of another kind. */
  constructor(file, name = file.name) {
    this.name = name;
    this.kind = kindOf(file, name);
    this.url = URL.createObjectURL(file);
    this.#file = file;
  }

  #file;

  /** The message's part in OpenAI's form. */
  async part() {
    const url = await dataUrl(this.#file);
    if (this.kind === "image") return { type: "image_url", image_url: { url } };
    if (this.kind === "video") return { type: "video_url", video_url: { url } };
    return { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1) } };
  }

  /** What the page shows of it. */
  preview() {
    const element = document.createElement({ audio: "audio", image: "img", video: "video" }[this.kind]);
    element.src = this.url;
    if (this.kind === "image") {
      element.alt = this.name;
      element.addEventListener("error", () => element.replaceWith(this.name), { once: true });
    } else element.controls = true;
    element.setAttribute("aria-label", this.name);
    return element;
  }

  forget() {
    URL.revokeObjectURL(this.url);
  }
}

function kindOf(file, name) {
  const type = file.type.split("/")[0];
  if (type in EXTENSIONS) return type;
  const extension = name.split(".").pop().toLowerCase();
  const kind = Object.keys(EXTENSIONS).find((key) => EXTENSIONS[key].includes(extension));
  if (!kind) throw new Error(`${name} is neither sound nor picture nor video.`);
  return kind;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("The file cannot be read."));
    reader.readAsDataURL(file);
  });
}
