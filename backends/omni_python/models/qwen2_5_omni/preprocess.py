"""A client's request to the thinker's prompt: every check of what a client may ask is here."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from omni_python.models.loading.checkpoint import load_config
from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.qwen2_5_omni.info import context, default_voice
from omni_python.models.qwen2_5_omni.payloads import Question
from omni_python.models.qwen2_5_omni.voices import load_voices
from omni_python.models.text.chat_template import load_template
from omni_python.models.text.conversation import render
from omni_python.models.text.options import OptionReader, check_messages, default_sampling
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import Message, OmniRequest, TextPart
from omni_python.proto.sampling import SamplingParams

TALKER_DEFAULTS = SamplingParams(temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05, max_tokens=4096)
"""As in transformers' Qwen2_5OmniForConditionalGeneration.generate."""

SPEECH_SYSTEM = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and "
    "visual inputs, as well as generating text and speech."
)
"""The system message that the published model needs to speak; put before conversations that have none."""

MEDIA_TOKENS = (
    "<|IMAGE|>",
    "<|VIDEO|>",
    "<|AUDIO|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
)


class Preprocessor:
    """The preprocessing stage of Qwen2.5-Omni: OmniRequest -> Question."""

    def __init__(self, model_path: str | Path, media: MediaLoader) -> None:
        self._context = context(load_config(model_path))
        self._tokenizer = load_tokenizer(model_path)
        self._template = load_template(model_path)
        self._media = media
        names = list(load_voices(model_path))
        self._options = OptionReader(True, names, default_voice(names), default_sampling(model_path), TALKER_DEFAULTS)

    def __call__(self, request: OmniRequest) -> Question:
        messages = request.messages
        check_messages(messages)
        _refuse_media(messages)
        options = self._options(request)
        if options.speech and messages[0].role != "system":
            messages = [Message("system", [TextPart(SPEECH_SYSTEM)]), *messages]
        ids = torch.tensor(self._tokenizer.encode(render(self._template, messages, MEDIA_TOKENS)).ids)
        room = self._context - len(ids)
        if room < 1:
            raise InvalidArgument(
                f"the prompt has {len(ids)} tokens; the context holds {self._context}, answer included"
            )
        if options.thinker.max_tokens > room:
            options.thinker = msgspec.structs.replace(options.thinker, max_tokens=room)
        positions = torch.arange(len(ids)).expand(3, -1).contiguous()
        return Question(ids, positions, 0, options)


def _refuse_media(messages: list[Message]) -> None:
    for turn, message in enumerate(messages):
        for index, part in enumerate(message.content):
            if not isinstance(part, TextPart):
                kind = type(part).__name__.removesuffix("Part").lower()
                raise InvalidArgument(
                    f"messages[{turn}].content[{index}]: this pipeline takes text alone, no {kind} yet"
                )
