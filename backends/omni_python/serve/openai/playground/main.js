import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { Player } from "./player.js";
import { Settings } from "./settings.js";
import { byId } from "./dom.js";

const RETRY_MS = 3000;

const status = byId("status");
const tell = (message) => (status.textContent = message);
const settings = new Settings();
const composer = new Composer(tell);
const conversation = new Conversation(new Player(), showState);

function showState() {
  const { streaming, busy } = conversation;
  const active = document.activeElement;
  byId("stop").hidden = !busy;
  byId("send").hidden = streaming;
  byId("welcome").hidden = byId("conversation").childElementCount > 0;
  byId("clear").hidden = !byId("welcome").hidden;
  // A button that vanishes must not take the keyboard's place on the page with it.
  if (active?.hidden) composer.focus();
}

async function send() {
  if (conversation.streaming) return;
  try {
    settings.body();
  } catch (error) {
    return tell(error.message);
  }
  const message = composer.take();
  if (!message) return composer.focus();
  tell("");
  await conversation.ask(message.text, message.attachments, settings).catch((error) => tell(error.message));
}

function openSettings(open) {
  document.body.classList.toggle("settings-open", open);
  byId("settings-toggle").setAttribute("aria-expanded", open);
  if (open) byId("model").focus();
  else byId("settings-toggle").focus();
}

function escape() {
  if (composer.recording) composer.discardRecording();
  else if (document.body.classList.contains("settings-open")) openSettings(false);
  else conversation.stop();
}

byId("composer").onsubmit = (event) => {
  event.preventDefault();
  send();
};
byId("stop").onclick = () => conversation.stop();
byId("clear").onclick = () => {
  conversation.clear();
  composer.focus();
};
byId("settings-toggle").onclick = () => openSettings(!document.body.classList.contains("settings-open"));
byId("settings-close").onclick = () => openSettings(false);
for (const example of document.querySelectorAll("#examples button")) {
  example.onclick = () => composer.write(example.textContent);
}
addEventListener("keydown", (event) => {
  if (event.key === "Escape") escape();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    send();
  }
});

/** Until there is a model to ask: a server that starts needs a while for that. */
async function load() {
  try {
    await settings.load();
    tell("");
  } catch (error) {
    tell(error.message);
    setTimeout(load, RETRY_MS);
  }
}

showState();
load();
