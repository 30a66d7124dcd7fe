"""Hugging Face's own `generate`, greedy, with what hooks see on the way."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.oracle.fixture_cases import CaseSpec

MEDIA = Path(__file__).parent / "media"
FPS = 2.0


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
