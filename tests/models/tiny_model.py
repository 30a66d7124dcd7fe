"""A tiny checkpoint, and Hugging Face's model of it as the oracle of single parts and of a whole staged generation."""

from __future__ import annotations

import atexit
import itertools
import shutil
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_python.models.qwen3_omni import tiny
from omni_python.models.qwen3_omni.payloads import AudioEmbeds, Prompt, ThinkerInput, VisionEmbeds
from omni_python.models.text.options import GenerationOptions
from omni_python.proto.sampling import SamplingParams

GREEDY = SamplingParams(max_tokens=12)
GREEDY_TALKER = SamplingParams(max_tokens=30, repetition_penalty=1.05)


@cache
def checkpoint() -> Path:
    """The tiny checkpoint that the recorded fixtures were made with."""
    out = Path(tempfile.mkdtemp(prefix="omni_test_"))
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    tiny.build(out)
    return out


@cache
def hf_model(path: Path) -> Any:
    from transformers import Qwen3OmniMoeForConditionalGeneration

    return Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@dataclass
class Conversation:
    """A prompt with random text and random media features."""

    input: ThinkerInput
    image_grids: torch.Tensor | None = None
    video_grids: torch.Tensor | None = None
    audio_lengths: torch.Tensor | None = None


@dataclass
class Generation:
    """What Hugging Face's modules make of a conversation; `codes` [frames, G]. `margin` is the smallest greedy one."""

    answer: list[int] = field(default_factory=list)
    codes: torch.Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))
    talker_ids: list[int] = field(default_factory=list)
    waveform: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    margin: float = float("inf")


def conversation(
    hf: Any,
    seed: int,
    media: tuple[str, ...] = (),
    *,
    thinker: SamplingParams = GREEDY,
    talker: SamplingParams = GREEDY_TALKER,
    speech: bool = True,
    stream: bool = True,
    turns: int = 1,
    words: int = 7,
) -> Conversation:
    """Random text of `words` tokens a turn; `media` (of "image", "video", "audio") stands in the last user turn."""
    config = hf.config
    thinker_config = config.thinker_config
    generator = torch.Generator().manual_seed(seed)
    hidden = thinker_config.text_config.hidden_size

    def text(count: int) -> list[int]:
        return torch.randint(0, 1500, (count,), generator=generator).tolist()

    def turn(role: int, content: list[int]) -> list[int]:
        return [config.im_start_token_id, role, 198, *content, config.im_end_token_id, 198]

    image_grid, video_grid, audio_frames = (1, 4, 8), (2, 4, 4), 130
    tokens = {
        "image": (thinker_config.image_token_id, 8),
        "video": (thinker_config.video_token_id, 8),
        "audio": (thinker_config.audio_token_id, 17),  # 13 for the first 100 frames, 4 for the other 30
    }
    brackets = {
        "image": (thinker_config.vision_start_token_id, thinker_config.vision_end_token_id),
        "video": (thinker_config.vision_start_token_id, thinker_config.vision_end_token_id),
        "audio": (thinker_config.audio_start_token_id, thinker_config.audio_end_token_id),
    }
    ids = turn(config.system_token_id, text(4))
    for _ in range(turns - 1):
        ids += turn(config.user_token_id, text(words)) + turn(config.assistant_token_id, text(words))
    content = text(2)
    for kind in media:
        token, count = tokens[kind]
        content += [brackets[kind][0], *[token] * count, brackets[kind][1], *text(1)]
    ids += turn(config.user_token_id, content + text(words))
    ids += [config.im_start_token_id, config.assistant_token_id, 198]

    grids = {
        "image": torch.tensor([image_grid] * media.count("image")) if "image" in media else None,
        "video": torch.tensor([video_grid] * media.count("video")) if "video" in media else None,
    }
    lengths = torch.tensor([audio_frames] * media.count("audio")) if "audio" in media else None
    input_ids = torch.tensor(ids)
    positions, delta = hf.thinker.get_rope_index(
        input_ids[None],
        grids["image"],
        grids["video"],
        torch.ones_like(input_ids)[None],
        False,
        lengths,
        torch.ones(media.count("video")),
    )

    def features(kind: str) -> torch.Tensor | None:
        count = tokens[kind][1] * media.count(kind)
        return torch.randn(count, hidden, generator=generator) if count else None

    def stack(embeds: torch.Tensor | None) -> list[torch.Tensor]:
        layers = len(thinker_config.vision_config.deepstack_visual_indexes)
        return [] if embeds is None else [torch.randn(embeds.shape, generator=generator) for _ in range(layers)]

    image, video, audio = features("image"), features("video"), features("audio")
    options = GenerationOptions(thinker, talker, speech, "Ethan", stream)
    prompt = Prompt(input_ids, positions[:, 0].long(), int(delta), options)
    vision = None if image is None and video is None else VisionEmbeds(image, video, stack(image), stack(video))
    sound = None if audio is None else AudioEmbeds(audio)
    return Conversation(ThinkerInput(prompt, vision, sound), grids["image"], grids["video"], lengths)


@torch.inference_mode()
def hf_generate(hf: Any, talk: Conversation) -> Generation:
    """Greedy generation by forward calls of Hugging Face's modules alone, one stage after the other."""
    options = talk.input.prompt.options
    result = Generation()
    embeds, hidden = _hf_answer(hf, talk, options.thinker, result)
    if options.speech and len(result.answer) > 1:
        _hf_speech(hf, talk, options.talker, embeds, hidden, result)
        if len(result.codes):
            result.waveform = hf.code2wav.chunked_decode(result.codes.T[None], 300, 25)[0, 0].numpy()
    return result


def hf_prompt(hf: Any, talk: Conversation) -> dict[str, Any]:
    """Keyword arguments of the thinker's text model for the prompt."""
    config = hf.config.thinker_config
    prompt, vision, audio = talk.input.prompt, talk.input.vision, talk.input.audio
    ids = prompt.input_ids
    embeds = hf.thinker.get_input_embeddings()(ids).clone()
    image_at, video_at = ids == config.image_token_id, ids == config.video_token_id
    visual = image_at | video_at
    deepstack = None
    if audio is not None:
        embeds[ids == config.audio_token_id] = audio.audio
    if vision is not None:
        count = max(len(vision.image_deepstack), len(vision.video_deepstack))
        deepstack = [torch.zeros(len(ids), embeds.shape[1]) for _ in range(count)]
        for at, features, layers in (
            (image_at, vision.image, vision.image_deepstack),
            (video_at, vision.video, vision.video_deepstack),
        ):
            if features is not None:
                embeds[at] = features
                for joined, layer in zip(deepstack, layers, strict=True):
                    joined[at] = layer
        deepstack = [layer[visual] for layer in deepstack]
    return {
        "inputs_embeds": embeds[None],
        "position_ids": prompt.position_ids[:, None],
        "visual_pos_masks": visual[None] if deepstack else None,
        "deepstack_visual_embeds": deepstack,
    }


def _hf_answer(
    hf: Any, talk: Conversation, sampling: SamplingParams, result: Generation
) -> tuple[torch.Tensor, torch.Tensor]:
    prompt = talk.input.prompt
    ends = set(hf.generation_config.eos_token_id)
    accept = hf.config.talker_config.accept_hidden_layer
    out = hf.thinker.model(**hf_prompt(hf, talk), use_cache=True, output_hidden_states=True)
    all_embeds, all_hidden = [out.hidden_states[0]], [out.hidden_states[accept]]
    while True:
        best = hf.thinker.lm_head(out.last_hidden_state[0, -1]).topk(2)
        result.margin = min(result.margin, float(best.values[0] - best.values[1]))
        token = int(best.indices[0])
        result.answer.append(token)
        if token in ends or len(result.answer) == sampling.max_tokens:
            return torch.cat(all_embeds, 1), torch.cat(all_hidden, 1)
        place = len(prompt.input_ids) + len(result.answer) - 1 + prompt.rope_delta
        out = hf.thinker.model(
            inputs_embeds=hf.thinker.get_input_embeddings()(torch.tensor([[token]])),
            position_ids=torch.full((3, 1, 1), place),
            past_key_values=out.past_key_values,
            use_cache=True,
            output_hidden_states=True,
        )
        all_embeds.append(out.hidden_states[0])
        all_hidden.append(out.hidden_states[accept])


def _hf_speech(
    hf: Any,
    talk: Conversation,
    sampling: SamplingParams,
    embeds: torch.Tensor,
    hidden: torch.Tensor,
    result: Generation,
) -> None:
    config, talker = hf.config, hf.talker
    prompt_ids = talk.input.prompt.input_ids
    sequence = torch.cat([prompt_ids, torch.tensor(result.answer)])[None]
    thinker = config.thinker_config
    is_media = torch.isin(
        sequence, torch.tensor([thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id])
    )
    special = torch.tensor([[config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id]])
    bos, eos, pad = talker.text_projection(hf.thinker.get_input_embeddings()(special)).chunk(3, dim=1)
    starts = [*(prompt_ids == config.im_start_token_id).nonzero()[:, 0].tolist(), sequence.shape[1]]
    parts, part_ids = [], []
    for start, end in itertools.pairwise(starts):
        if sequence[0, start + 1] == config.user_token_id:
            mask = is_media[:, : embeds.shape[1]]
            parts.append(hf._get_talker_user_parts(start, end, mask, hidden, embeds))
            part_ids.append(sequence[:, start:end])
    voice = config.talker_config.speaker_id["ethan"]
    assistant, assistant_ids, trailing = hf._get_talker_assistant_parts(
        starts[-2], starts[-1], voice, embeds, pad, bos, eos
    )
    inputs = torch.cat([*parts, assistant], dim=1)
    ids = torch.cat([*part_ids, assistant_ids], dim=1)
    positions, delta = talker.get_rope_index(
        ids,
        talk.image_grids,
        talk.video_grids,
        torch.ones_like(ids),
        None,
        talk.audio_lengths,
        torch.ones(0 if talk.video_grids is None else len(talk.video_grids)),
    )
    vocab, end_id = config.talker_config.text_config.vocab_size, config.talker_config.codec_eos_token_id
    suppressed = torch.arange(vocab) >= vocab - 1024
    suppressed[end_id] = False
    frames: list[list[int]] = []
    out = talker.model(inputs_embeds=inputs, position_ids=positions, use_cache=True)
    place = inputs.shape[1]
    while True:
        last = out.last_hidden_state[:, -1:]
        logits = talker.codec_head(last)[0, 0]
        for seen in set(result.talker_ids):
            penalty = sampling.repetition_penalty
            logits[seen] = logits[seen] / penalty if logits[seen] > 0 else logits[seen] * penalty
        best = logits.masked_fill(suppressed, -torch.inf).topk(2)
        result.margin = min(result.margin, float(best.values[0] - best.values[1]))
        code = int(best.indices[0])
        result.talker_ids.append(code)
        if code == end_id or len(result.talker_ids) == sampling.max_tokens:
            break
        codes, feedback = _hf_frame(talker, last, code, result)
        text = trailing[:, len(frames)] if len(frames) < trailing.shape[1] else pad[:, 0]
        frames.append(codes)
        out = talker.model(
            inputs_embeds=(feedback + text)[None],
            position_ids=(torch.full((3, 1, 1), place) + delta).float(),
            past_key_values=out.past_key_values,
            use_cache=True,
        )
        place += 1
    result.codes = torch.tensor(frames, dtype=torch.int64)


def _hf_frame(talker: Any, last: torch.Tensor, code: int, result: Generation) -> tuple[list[int], torch.Tensor]:
    """One frame's codes and the sum of their embeddings [1, hidden]."""
    predictor = talker.code_predictor
    embeds = [talker.get_input_embeddings()(torch.tensor([[code]]))]
    codes = [code]
    out = predictor(inputs_embeds=torch.cat([last, embeds[0]], dim=1), use_cache=True)
    for group in range(predictor.config.num_code_groups - 1):
        best = out.logits[0, -1].topk(2)
        result.margin = min(result.margin, float(best.values[0] - best.values[1]))
        codes.append(int(best.indices[0]))
        token = torch.tensor([[codes[-1]]])
        embeds.append(predictor.model.codec_embedding[group](token))
        if group < predictor.config.num_code_groups - 2:
            out = predictor(
                input_ids=token, past_key_values=out.past_key_values, use_cache=True, generation_steps=group + 1
            )
    return codes, torch.cat(embeds, dim=1).sum(dim=1)
