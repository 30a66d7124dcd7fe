"""What Hugging Face's `generate` makes of a prompt on a Qwen2.5-Omni checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Spoken:
    """`answer` with the end token where one came; `codes`; `waveform` float32 [samples]. `margin` is the smallest
    difference of the two best logits of any greedy choice."""

    answer: list[int]
    codes: list[int]
    waveform: np.ndarray
    margin: float


class Reference:
    """Greedy, in float32, with the noise of the waveform drawn from a seed."""

    def __init__(self, path: Path) -> None:
        from transformers import Qwen2_5OmniForConditionalGeneration

        self.model: Any = Qwen2_5OmniForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()

    def __call__(
        self,
        input_ids: torch.Tensor,
        speaker: str,
        max_tokens: int,
        max_codes: int,
        seed: int,
        penalty: float = 1.0,
        **further: Any,
    ) -> Spoken:
        model, codes, margins = self.model, [], [float("inf")]
        talker = model.config.talker_config
        ends = [talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id]
        known = model.config.token2wav_config.dit_config.num_embeds + 1

        def choice(last: torch.Tensor) -> None:
            best = last.topk(2).values
            margins.append(float(best[0] - best[1]))

        def thought(module: Any, given: Any, logits: torch.Tensor) -> None:
            choice(logits[0, -1])

        def spoke(module: Any, given: Any, logits: torch.Tensor) -> torch.Tensor:
            logits = logits.clone()
            unknown = torch.arange(logits.shape[-1]) >= known
            unknown[ends] = False
            logits[..., unknown] = -torch.inf  # of these Hugging Face's own waveform would fail
            choice(logits[0, -1])
            return logits

        def heard(module: Any, given: Any) -> None:
            codes.extend(given[0][0].tolist())

        hooks = [
            model.thinker.lm_head.register_forward_hook(thought),
            model.talker.codec_head.register_forward_hook(spoke),
            model.token2wav.register_forward_pre_hook(heard),
        ]
        torch.manual_seed(seed)
        try:
            tokens, waveform = model.generate(
                input_ids=input_ids[None],
                attention_mask=torch.ones_like(input_ids)[None],
                speaker=speaker,
                thinker_max_new_tokens=max_tokens,
                thinker_do_sample=False,
                talker_max_new_tokens=max_codes,
                talker_do_sample=False,
                talker_repetition_penalty=penalty,
                talker_eos_token_id=ends,
                **further,
            )
        finally:
            for hook in hooks:
                hook.remove()
        return Spoken(tokens[0, len(input_ids) :].tolist(), codes, waveform.numpy().reshape(-1), min(margins))
