"""A decoder between a token embedding and a head."""

from __future__ import annotations

from torch import nn

from omni_python.layers.decoder import Decoder, DecoderConfig


class TextDecoder(Decoder):
    """A decoder with its token embedding."""

    def __init__(self, config: DecoderConfig, vocab_size: int) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(vocab_size, config.hidden)


class LanguageModel(nn.Module):
    """Names of weights are those of Hugging Face's checkpoints."""

    def __init__(self, config: DecoderConfig, vocab_size: int) -> None:
        super().__init__()
        self.model = TextDecoder(config, vocab_size)
        self.lm_head = nn.Linear(config.hidden, vocab_size, bias=False)
