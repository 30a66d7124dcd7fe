"""What the talker reads before it speaks, made from the thinker's prompt.

As Hugging Face's generation has it: every user turn, and then nine positions of the assistant's turn, at which a text
and a codec embedding are added (system and former assistant turns are left out):

    text   <|im_start|>  assistant  \\n  pad      pad        pad        pad      bos        first token of the answer
    codec  -             -          -   nothink  think_bos  think_eos  speaker  codec_pad  codec_bos
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from omni_python.model_runner.base import PromptInput
from omni_python.models.qwen3_omni.payloads import TalkerPrompt
from omni_python.models.qwen3_omni.talker import Talker
from omni_python.proto.errors import InvalidArgument, OmniError


@dataclass(frozen=True)
class TalkerTokens:
    """The ids that the talker's prompt is made of: of the thinker's vocabulary, then of the codec's."""

    im_start: int
    system: int
    user: int
    assistant: int
    media: tuple[int, int, int]
    vision: tuple[int, int]
    vision_start: int
    tts_pad: int
    tts_bos: int
    tts_eos: int
    codec_prefix: tuple[int, int, int]
    codec_pad: int
    codec_bos: int
    codec_eos: int
    speakers: dict[str, int]

    assistant_rows = 9

    @staticmethod
    def of(config: Any) -> TalkerTokens:
        """From a `Qwen3OmniMoeConfig`."""
        thinker, talker = config.thinker_config, config.talker_config
        return TalkerTokens(
            im_start=config.im_start_token_id,
            system=config.system_token_id,
            user=config.user_token_id,
            assistant=config.assistant_token_id,
            media=(thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id),
            vision=(thinker.image_token_id, thinker.video_token_id),
            vision_start=talker.vision_start_token_id,
            tts_pad=config.tts_pad_token_id,
            tts_bos=config.tts_bos_token_id,
            tts_eos=config.tts_eos_token_id,
            codec_prefix=(talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id),
            codec_pad=talker.codec_pad_id,
            codec_bos=talker.codec_bos_id,
            codec_eos=talker.codec_eos_token_id,
            speakers={name.lower(): speaker for name, speaker in (talker.speaker_id or {}).items()},
        )


@dataclass(frozen=True)
class UserPart:
    """The user turns: `ids` and `is_media` (bool), each [n]; `positions` [3, n]; `media_hidden` [m, H] at the media
    positions; `header` [3], the ids that begin the assistant's turn, whose first position is `next_position`."""

    ids: torch.Tensor
    is_media: torch.Tensor
    positions: torch.Tensor
    media_hidden: torch.Tensor | None
    header: torch.Tensor
    next_position: float

    @property
    def num_tokens(self) -> int:
        return len(self.ids)


def user_part(prompt: TalkerPrompt, tokens: TalkerTokens) -> tuple[UserPart, list[int]]:
    """The user turns of a prompt, and those tokens of an answer that stand in the prompt already (mostly none)."""
    ids = prompt.input_ids.cpu()
    starts = (ids == tokens.im_start).nonzero()[:, 0].tolist()
    turns = list(itertools.pairwise([*starts, len(ids)])) if starts else []
    roles = [int(ids[start + 1]) if start + 1 < end else -1 for start, end in turns]
    if not turns or roles[-1] != tokens.assistant or turns[-1][1] - turns[-1][0] < 3:
        raise InvalidArgument("to be spoken, the prompt must end with the beginning of an assistant turn")
    if set(roles) - {tokens.system, tokens.user, tokens.assistant}:
        raise InvalidArgument("the talker knows the roles system, user and assistant alone")
    kept = [turn for turn, role in zip(turns, roles, strict=True) if role == tokens.user]
    keep = torch.zeros(len(ids), dtype=torch.bool)
    for start, end in kept:
        keep[start:end] = True
    is_media = torch.isin(ids, torch.tensor(tokens.media))
    if prompt.media_hidden is None and bool(is_media.any()):
        raise OmniError("the prompt has media, but no hidden state of the thinker came with it")
    positions = _positions(ids, prompt.position_ids.cpu(), kept, tokens)
    part = UserPart(
        ids=ids[keep],
        is_media=is_media[keep],
        positions=positions,
        media_hidden=None
        if prompt.media_hidden is None
        else prompt.media_hidden[keep[is_media].to(prompt.media_hidden.device)],
        header=ids[starts[-1] : starts[-1] + 3],
        next_position=float(positions.max()) + 1 if positions.numel() else 0.0,
    )
    return part, ids[starts[-1] + 3 :].tolist()


def speech_prompt(talker: Talker, tokens: TalkerTokens, user: UserPart, speaker: int, first_token: int) -> PromptInput:
    """The talker's whole prompt: the user turns, and nine rows with the answer's first token in the last."""
    device = talker.codec_head.weight.device
    rows = talker.project_text(user.ids.to(device))
    if user.media_hidden is not None:
        rows[user.is_media.to(device)] = talker.hidden_projection(user.media_hidden.to(device, rows.dtype))
    text_ids = [*user.header.tolist(), *[tokens.tts_pad] * 4, tokens.tts_bos, first_token]
    codec_ids = [*tokens.codec_prefix, speaker, tokens.codec_pad, tokens.codec_bos]
    assistant = talker.project_text(torch.tensor(text_ids, device=device))
    assistant[3:] += talker.model.codec_embedding(torch.tensor(codec_ids, device=device))
    after = user.next_position + torch.arange(tokens.assistant_rows)
    positions = torch.cat((user.positions, after.expand(3, -1)), dim=1)
    return PromptInput(torch.cat((rows, assistant)), positions.to(device))


def _positions(
    ids: torch.Tensor, positions: torch.Tensor, kept: list[tuple[int, int]], tokens: TalkerTokens
) -> torch.Tensor:
    """Rotary positions [3, n] of the kept turns: inside a turn as in the thinker, the turns one after the other.

    Hugging Face does not tell its talker which videos come with their sound track between their frames. It then reads
    such a video as plain text once no other picture or video follows, so from there on positions count up by one.
    """
    parts: list[torch.Tensor] = []
    at = 0.0
    for start, end in kept:
        turn = positions[:, start:end].float()
        parts.append(turn - turn[:, :1] + at)
        at = float(parts[-1].max()) + 1
    if not parts:
        return torch.zeros(3, 0)
    joined = torch.cat(parts, dim=1)
    plain = _end_of_last_picture(torch.cat([ids[start:end] for start, end in kept]), tokens)
    first = float(joined[:, :plain].max()) + 1 if plain else 0.0
    joined[:, plain:] = first + torch.arange(joined.shape[1] - plain)
    return joined


def _end_of_last_picture(ids: torch.Tensor, tokens: TalkerTokens) -> int:
    """The place behind the last image, or video without sound between its frames; 0 where there is none."""
    begins = (ids[:-1] == tokens.vision_start) & torch.isin(ids[1:], torch.tensor(tokens.vision))
    if not begins.any():
        return 0
    first = int(begins.nonzero()[-1]) + 1
    others = (ids[first:] != ids[first]).nonzero()
    return first + int(others[0]) if len(others) else len(ids)
