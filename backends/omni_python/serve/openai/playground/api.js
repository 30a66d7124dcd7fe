import { serverSentEvents } from "./events.js";
import { WavReader } from "./wav.js";

/** What the server says is wrong, or that it does not answer. */
export class ApiError extends Error {}

/** The pipelines' names. */
export async function models() {
  return (await getJson("/v1/models")).data.map((model) => model.id);
}

/** The voices of a pipeline as {id, name, default}; null where the server has no list of them. */
export async function voices(model) {
  const reply = await getJson(`/v1/audio/voices?model=${encodeURIComponent(model)}`).catch(() => null);
  return reply?.voices ?? null;
}

/**
 * Ask for a chat completion, and get the answer's pieces as they come:
 * {text}, {samples: Int16Array, sampleRate}, {finishReason}, {stages} as in `omni_timings`, and {usage}.
 * Aborting `signal` ends it with an AbortError; what the server refuses, with an ApiError.
 */
export async function* chat(body, signal) {
  const response = await request("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const wav = new WavReader();
  for await (const data of serverSentEvents(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message);
    for (const { delta, finish_reason: finishReason } of chunk.choices) {
      if (delta.content) yield { text: delta.content };
      if (delta.audio?.data) {
        const samples = wav.read(bytesOf(delta.audio.data));
        if (samples.length) yield { samples, sampleRate: wav.sampleRate };
      }
      if (finishReason) yield { finishReason };
    }
    if (chunk.omni_timings?.length) yield { stages: chunk.omni_timings };
    if (chunk.usage) yield { usage: chunk.usage };
  }
  throw new ApiError("The answer broke off: the connection to the server was lost.");
}

async function getJson(path) {
  return (await request(path)).json();
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (options?.signal?.aborted) throw error;
    throw new ApiError("The server does not answer.");
  }
  if (response.ok) return response;
  const reply = await response.json().catch(() => null);
  throw new ApiError(reply?.error?.message ?? `The server answered with status ${response.status}.`);
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
