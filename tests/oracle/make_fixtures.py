"""The oracle: Hugging Face's own `generate` on the tiny checkpoint, recorded case by case.

Run in an environment of its own (see requirements.txt), never by the tests:

    PYTHONPATH=backends python tests/oracle/make_fixtures.py [CASE ...]

It shares no code with the pipeline but the builder of the checkpoint: media are read with the standard library, Pillow
and PyAV, prompts are made by the model's Hugging Face processor. For each case it tries one question after the other
until every greedy choice (thinker, talker, code predictor) wins by `MIN_MARGIN` and the speech ends as the case wants.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import wave
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
MEDIA = HERE / "media"
FIXTURES = HERE / "fixtures"
MIN_MARGIN = 0.005
MIN_ROUTER_MARGIN = 2e-5
FPS = 2.0
SAMPLES_KEPT = 4096
"""Of each large tensor, that many values are recorded, evenly spread over the flattened tensor."""

TEXT = "{question}"
QUESTIONS = """What is this?
Tell me what you notice.
Can you describe it in a few words?
What happens next?
Please explain this to me.
Is there something unusual here?
How would you describe the mood?
What should I know about it?
Give me a short summary.
Who could have made this?
Which part is the most important?
Why does it matter?
Where might this come from?
When was this made?
Do you like it?
How many things are there?
What would you change?
Say it in one sentence.
Compare the beginning and the end.
Repeat the main point.
What is missing?
Make up a title for this.
Is it true?
List three details.""".splitlines()
QUESTIONS += [f"{opening} {question}" for opening in ("Hello.", "Now tell me:", "Quickly:") for question in QUESTIONS]


@dataclass
class CaseSpec:
    """`messages` in content-part form; media parts name a file under media/, and TEXT stands for the question."""

    messages: list[dict[str, Any]]
    voice: str
    thinker_tokens: int = 16
    talker_tokens: int = 41
    speech_ends: str = "length"
    answer_ends: str | None = None
    min_frames: int = field(default=8)


def user(*parts: str) -> dict[str, Any]:
    return {"role": "user", "content": [_part(part) for part in parts]}


def _part(text: str) -> dict[str, Any]:
    kinds = {".wav": "audio", ".jpg": "image", ".png": "image", ".mp4": "video"}
    kind = kinds.get(Path(text).suffix)
    return {"type": kind, "file": text} if kind else {"type": "text", "text": text}


SYSTEM = {"role": "system", "content": [_part("You are a helpful assistant that speaks.")]}
CASES = {
    "text": CaseSpec([user(TEXT)], "Ethan", talker_tokens=62),
    "text_stop": CaseSpec([SYSTEM, user(TEXT)], "chelsie", thinker_tokens=24, speech_ends="stop", answer_ends="stop"),
    "audio": CaseSpec([user("voice_16k.wav", TEXT)], "Chelsie"),
    "image": CaseSpec([SYSTEM, user("landscape.jpg", TEXT)], "aiden", thinker_tokens=20),
    "video": CaseSpec([user("silent.mp4", TEXT)], "ethan", talker_tokens=31),
    "video_sound": CaseSpec([SYSTEM, user("talking.mp4", TEXT)], "Aiden", talker_tokens=31),
    "audio_image": CaseSpec([user("portrait.png", TEXT, "voice_short_16k.wav")], "chelsie", speech_ends="stop"),
    "all": CaseSpec(
        [SYSTEM, user("voice_16k.wav", "landscape.jpg", "talking.mp4", TEXT)],
        "ethan",
        thinker_tokens=20,
        talker_tokens=31,
    ),
    "multi_turn": CaseSpec(
        [
            SYSTEM,
            user("portrait.png", "What do you see in this picture?"),
            {"role": "assistant", "content": [_part("A sun over a field.")]},
            user("voice_16k.wav", "voice_short_16k.wav", TEXT),
        ],
        "aiden",
        talker_tokens=31,
    ),
}


class Oracle:
    """The checkpoint in Hugging Face's classes."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import Qwen3OmniMoeForConditionalGeneration, Qwen3OmniMoeProcessor

        self.processor = Qwen3OmniMoeProcessor.from_pretrained(checkpoint)
        self.model, loading = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
        self.model.eval()
        # transformers 5.24: the talker's rope index reads a config that only the thinker has
        self.model.talker.config.audio_config = self.model.thinker.config.audio_config

    def inputs(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The processor's output for messages whose media parts name files."""
        from PIL import Image
        from transformers.video_utils import VideoMetadata

        audio: list[np.ndarray] = []
        audio_of_video: list[int | None] = []
        images: list[Any] = []
        videos: list[np.ndarray] = []
        metadata: list[Any] = []
        for part in (part for message in messages for part in message["content"]):
            path = MEDIA / part.get("file", "")
            if part["type"] == "audio":
                audio.append(read_wav(path))
                audio_of_video.append(None)
            elif part["type"] == "image":
                images.append(Image.open(path))
            elif part["type"] == "video":
                frames, rate, sound = read_mp4(path)
                if sound is not None:
                    audio.append(sound)
                    audio_of_video.append(len(videos))
                videos.append(frames)
                metadata.append(
                    VideoMetadata(
                        total_num_frames=len(frames), fps=rate, duration=len(frames) / rate, frames_indices=None
                    )
                )
        text = self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        extra: dict[str, Any] = {}
        if audio:
            extra["audio"] = audio
        if images:
            extra["images"] = images
        if videos:
            extra["videos"] = videos
            extra["videos_kwargs"] = {"do_sample_frames": True, "fps": FPS, "video_metadata": metadata}
        if any(index is not None for index in audio_of_video):
            extra |= {"load_audio_from_video": True, "audio_from_video_indices": audio_of_video}
        return dict(self.processor(text=[text], return_tensors="pt", **extra))

    @torch.no_grad()
    def generate(self, inputs: dict[str, Any], spec: CaseSpec, sound_in_video: bool) -> dict[str, Any]:
        """What greedy generation made, with what hooks saw on the way."""
        model, seen = self.model, Recorder(self.model)
        eos = model.generation_config.eos_token_id
        with seen:
            ids, wave_ = model.generate(
                **inputs,
                speaker=spec.voice,
                use_audio_in_video=sound_in_video,
                return_audio=True,
                thinker_do_sample=False,
                thinker_max_new_tokens=spec.thinker_tokens,
                thinker_eos_token_id=eos,
                talker_do_sample=False,
                talker_max_new_tokens=spec.talker_tokens,
                talker_repetition_penalty=1.05,
            )
        answer = ids[0, inputs["input_ids"].shape[1] :].tolist()
        first_codes, talker_margin = self._talker_choices(seen.talker_logits)
        stopped = first_codes[-1] == model.config.talker_config.codec_eos_token_id
        frames = seen.codes.shape[-1]
        assert first_codes[:frames] == seen.codes[0, 0].tolist() and len(first_codes) == frames + 1
        return {
            "answer": answer,
            "answer_ends": "stop" if answer[-1] in eos else "length",
            "text": self.processor.tokenizer.decode(answer, skip_special_tokens=True),
            "codes": seen.codes[0].to(torch.int64).numpy(),
            "speech_ends": "stop" if stopped else "length",
            "waveform": wave_.reshape(-1).float().numpy(),
            "position_ids": seen.position_ids,
            "rope_delta": int(model.thinker.model.rope_deltas.reshape(-1)[0]),
            "margins": {
                "thinker": min(top_two_gap(row) for row in seen.thinker_logits),
                "talker": talker_margin,
                "code_predictor": min(top_two_gap(row) for row in seen.predictor_logits),
                "router": seen.router_margin,
            },
        }

    def _talker_choices(self, logits: list[torch.Tensor]) -> tuple[list[int], float]:
        """Group-0 codes and their smallest margin, from raw logits: penalty on earlier choices, then suppression."""
        config = self.model.config.talker_config
        vocabulary = config.text_config.vocab_size
        chosen: list[int] = []
        margin = float("inf")
        for row in logits:
            row = row.clone()
            for code in set(chosen):
                row[code] = row[code] / 1.05 if row[code] > 0 else row[code] * 1.05
            kept = row[config.codec_eos_token_id].clone()
            row[vocabulary - 1024 :] = -torch.inf
            row[config.codec_eos_token_id] = kept
            margin = min(margin, top_two_gap(row))
            chosen.append(int(row.argmax()))
        return chosen, margin


class Recorder:
    """Hooks that keep logits, positions and codes of one `generate`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.thinker_logits: list[torch.Tensor] = []
        self.talker_logits: list[torch.Tensor] = []
        self.predictor_logits: list[torch.Tensor] = []
        self.position_ids: np.ndarray | None = None
        self.codes: torch.Tensor = torch.empty(0)
        self.router_margin = float("inf")
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        model = self.model
        heads = [(model.thinker.lm_head, self.thinker_logits), (model.talker.codec_head, self.talker_logits)]
        heads += [(head, self.predictor_logits) for head in model.talker.code_predictor.lm_head]
        for head, rows in heads:
            self._handles.append(
                head.register_forward_hook(lambda m, i, out, rows=rows: rows.append(out[0, -1].float()))
            )
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                self._handles.append(module.register_forward_hook(self._router))
        self._handles.append(
            model.thinker.model.language_model.register_forward_pre_hook(self._positions, with_kwargs=True)
        )
        self._decode = model.code2wav.chunked_decode
        model.code2wav.chunked_decode = self._chunked_decode

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self.model.code2wav.chunked_decode = self._decode

    def _router(self, module: Any, inputs: Any, output: Any) -> None:
        probabilities = output[0].float()
        used = probabilities.sort(-1, descending=True).values
        self.router_margin = min(self.router_margin, float((used[..., 1] - used[..., 2]).min()))

    def _positions(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if self.position_ids is None:
            positions = kwargs["position_ids"]
            self.position_ids = positions[-3:, 0].to(torch.int64).numpy()
            assert (positions[-3:, 0] == positions[-3:, 0].round()).all()

    def _chunked_decode(self, codes: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.codes = codes
        return self._decode(codes, *args, **kwargs)


def top_two_gap(logits: torch.Tensor) -> float:
    top = logits.topk(2).values
    return float(top[0] - top[1])


def read_wav(path: Path) -> np.ndarray:
    """Mono 16-bit 16 kHz to float32."""
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16000)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def read_mp4(path: Path) -> tuple[np.ndarray, float, np.ndarray | None]:
    """All frames uint8 [T, H, W, 3], their rate, and the 16 kHz mono sound track if there is one."""
    import av

    with av.open(str(path)) as container:
        rate = float(container.streams.video[0].average_rate or 0)
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    with av.open(str(path)) as container:
        if not container.streams.audio:
            return frames, rate, None
        assert container.streams.audio[0].rate == 16000
        return frames, rate, np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])


def compact(tensor: torch.Tensor) -> dict[str, Any]:
    """A tensor as its shape, evenly spread values, and sums."""
    flat = tensor.reshape(-1).float().numpy()
    step = max(1, flat.size // SAMPLES_KEPT)
    total = flat.astype(np.float64)
    return {"shape": np.array(tensor.shape), "step": step, "values": flat[::step], "norm": np.sqrt((total**2).mean())}


def fill(messages: list[dict[str, Any]], question: str) -> list[dict[str, Any]]:
    """The messages with the question in the place of TEXT."""
    return json.loads(json.dumps(messages).replace(TEXT, question))


def make(oracle: Oracle, name: str, spec: CaseSpec, checkpoint_hash: str) -> None:
    for question in QUESTIONS:
        messages = fill(spec.messages, question)
        inputs = oracle.inputs(messages)
        sound = any(p["type"] == "video" for m in messages for p in m["content"]) and "input_features" in inputs
        made = oracle.generate(inputs, spec, sound)
        margins = made["margins"]
        problem = problem_of(made, spec)
        print(f"{name}: {question!r} {problem or 'taken'}", {key: round(value, 5) for key, value in margins.items()})
        if problem is None:
            return save(name, spec, messages, inputs, made, checkpoint_hash)
    sys.exit(f"{name}: no question gives clear margins and the wanted end")


def problem_of(made: dict[str, Any], spec: CaseSpec) -> str | None:
    """Why this run makes no good fixture, or None."""
    margins = made["margins"]
    if min(margins[key] for key in ("thinker", "talker", "code_predictor")) < MIN_MARGIN:
        return "margin"
    if margins["router"] < MIN_ROUTER_MARGIN:
        return "router margin"
    if made["speech_ends"] != spec.speech_ends:
        return f"speech ends by {made['speech_ends']}"
    if spec.answer_ends not in (None, made["answer_ends"]):
        return f"answer ends by {made['answer_ends']}"
    if made["codes"].shape[1] < spec.min_frames:
        return f"{made['codes'].shape[1]} frames"
    if not made["text"].strip():
        return "empty answer"
    return None


def save(
    name: str,
    spec: CaseSpec,
    messages: list[dict[str, Any]],
    inputs: dict[str, Any],
    made: dict[str, Any],
    weights: str,
) -> None:
    arrays: dict[str, Any] = {
        "input_ids": inputs["input_ids"][0].numpy(),
        "position_ids": made["position_ids"],
        "answer": np.array(made["answer"]),
        "codes": made["codes"],
        "waveform": made["waveform"],
    }
    for key in ("image_grid_thw", "video_grid_thw"):
        if key in inputs:
            arrays[key] = inputs[key].numpy()
    features: dict[str, torch.Tensor] = {
        key: inputs[key] for key in ("pixel_values", "pixel_values_videos") if key in inputs
    }
    if "input_features" in inputs:
        mask = inputs["feature_attention_mask"].bool()
        arrays["audio_lengths"] = mask.sum(1).numpy()
        features["audio_features"] = inputs["input_features"].permute(0, 2, 1)[mask].T
    for key, tensor in features.items():
        arrays |= {f"{key}.{part}": value for part, value in compact(tensor).items()}
    np.savez_compressed(FIXTURES / f"{name}.npz", **arrays)
    files = sorted({part["file"] for message in messages for part in message["content"] if "file" in part})
    about = {
        "messages": messages,
        "voice": spec.voice,
        "thinker_max_tokens": spec.thinker_tokens,
        "talker_max_tokens": spec.talker_tokens,
        "text": made["text"],
        "answer_ends": made["answer_ends"],
        "speech_ends": made["speech_ends"],
        "rope_delta": made["rope_delta"],
        "margins": made["margins"],
        "checkpoint": weights,
        "media_sha256": {file: hashlib.sha256((MEDIA / file).read_bytes()).hexdigest() for file in files},
        "versions": versions(),
    }
    (FIXTURES / f"{name}.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", "utf-8")


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "torchvision", "numpy", "pillow", "av")}


def declare_torchvision_operators() -> torch.library.Library:
    """Let torchvision import beside a torch that it was not built for.

    Its compiled operators are then absent, but image processing uses none of them; only their names must exist,
    as long as the returned library lives.
    """
    names = "nms qnms roi_align _roi_align_backward ps_roi_align _ps_roi_align_backward roi_pool _roi_pool_backward "
    names += "ps_roi_pool _ps_roi_pool_backward qroi_align deform_conv2d _deform_conv2d_backward"
    operators = torch.library.Library("torchvision", "FRAGMENT")
    for name in names.split():
        operators.define(f"{name}(Tensor input) -> Tensor")
    return operators


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    wanted = parser.parse_args().cases or list(CASES)
    try:
        import torchvision  # type: ignore[import-not-found]  # noqa: F401
    except RuntimeError:
        for module in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        operators = declare_torchvision_operators()  # noqa: F841
    from omni_python.models.qwen3_omni import tiny

    torch.manual_seed(0)
    FIXTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        weights = tiny.build(directory)
        assert weights == tiny.DEFAULT_HASH, weights
        oracle = Oracle(Path(directory))
        for name in wanted:
            make(oracle, name, CASES[name], weights)


if __name__ == "__main__":
    main()
