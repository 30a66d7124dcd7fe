"""A checkpoint with the published structure, only with few layers and narrow: served from end to end."""

from __future__ import annotations

import copy
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.qwen3_omni import tiny
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.models.qwen3_omni.payloads import AudioEmbeds, ThinkerInput, VisionEmbeds
from omni_python.models.qwen3_omni.preprocess import Preprocessor
from omni_python.models.qwen3_omni.tiny_config import with_token_ids
from omni_python.proto.payload import AudioOutput, TextOutput
from omni_python.proto.request import AudioPart, ContentPart, ImagePart, Message, OmniRequest, TextPart
from tests.models.tiny_model import Conversation, Generation, hf_generate, hf_model
from tests.models.wired_stages import WiredStages
from tests.oracle.cases import MEDIA
from tests.pipeline.harness import Pipeline, Sink, running

PUBLISHED = Path(__file__).parent / "published_config.json"
CLEAR = 2e-4
"""A greedy choice by less may fall the other way in another implementation."""
SHARDS = 5


def narrowed(published: dict[str, Any]) -> dict[str, Any]:
    """The published config.json with fewer layers and heads, and narrower; everything else stays."""
    config = copy.deepcopy(published)
    thinker, talker = config["thinker_config"], config["talker_config"]
    config["dtype"] = thinker["dtype"] = "float32"
    thinker["audio_config"] |= {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
    thinker["audio_config"] |= {"downsample_hidden_size": 8, "output_dim": 64}
    thinker["vision_config"] |= {"depth": 5, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2}
    thinker["vision_config"] |= {"out_hidden_size": 64, "deepstack_visual_indexes": [1, 2, 4]}
    thinker["text_config"] |= {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 8}
    thinker["text_config"] |= {"num_key_value_heads": 1, "intermediate_size": 32, "moe_intermediate_size": 32}
    talker |= {"accept_hidden_layer": 3, "thinker_hidden_size": 64}
    talker["text_config"] |= {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 8}
    talker["text_config"] |= {"num_key_value_heads": 1, "intermediate_size": 96, "moe_intermediate_size": 24}
    talker["text_config"] |= {"shared_expert_intermediate_size": 48}
    talker["code_predictor_config"] |= {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    talker["code_predictor_config"] |= {"num_key_value_heads": 2, "intermediate_size": 96}
    talker["code_predictor_config"] |= {"layer_types": ["full_attention"] * 2}
    config["code2wav_config"] |= {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config["code2wav_config"] |= {"num_key_value_heads": 2, "intermediate_size": 64, "decoder_dim": 32}
    return with_token_ids(config)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("narrow")
    tiny.build_from_config(out, narrowed(json.loads(PUBLISHED.read_text("utf-8"))))
    shard(out)
    return out


def shard(directory: Path) -> None:
    """Cut model.safetensors into numbered shards with an index, so that no layer lies in one file."""
    whole = load_file(directory / "model.safetensors")
    weight_map: dict[str, str] = {}
    for number in range(SHARDS):
        file = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        part = {name: whole[name] for name in sorted(whole)[number::SHARDS]}
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (directory / "model.safetensors").unlink()


@pytest.fixture(scope="module")
def pipeline(checkpoint: Path) -> Iterator[Pipeline]:
    small: dict[str, Any] = {"max_running": 4, "kv_tokens": 2048, "prefill_tokens": 64}
    config = Qwen3OmniSpeechPipelineConfig(
        model_path=str(checkpoint), runtime_overrides={"thinker": small, "talker_ar": small}
    )
    with tempfile.TemporaryDirectory() as directory, running(config, Path(directory)) as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def preprocess(checkpoint: Path) -> Preprocessor:
    return Preprocessor(checkpoint, speech=True)


def media(name: str) -> np.ndarray:
    return np.fromfile(MEDIA / name, np.uint8)


def request(content: list[ContentPart], stream: bool) -> OmniRequest:
    talker = {"temperature": 0.0, "repetition_penalty": 1.05, "max_tokens": 13}
    sampling = {"temperature": 0.0, "max_tokens": 12, "talker": talker}
    return OmniRequest([Message("user", content)], voice="Ethan", sampling=sampling, stream=stream)


@torch.inference_mode()
def expected(checkpoint: Path, preprocess: Preprocessor, asked: OmniRequest) -> tuple[Generation, Conversation]:
    """By Hugging Face's modules alone, from the preprocessed request on; its own `generate` must agree on the text."""
    hf = hf_model(checkpoint)
    made = preprocess(asked)
    vision = audio = None
    media: dict[str, Any] = {}
    if made.vision is not None:
        media = {"pixel_values": made.vision.image_pixels, "image_grid_thw": made.vision.image_grids}
        seen = hf.thinker.visual(media["pixel_values"], grid_thw=media["image_grid_thw"], return_dict=True)
        assert len(seen.deepstack_features) == 3
        vision = VisionEmbeds(seen.pooler_output, None, list(seen.deepstack_features), [])
    if made.audio is not None:
        heard = hf.thinker.audio_tower(made.audio.features, feature_lens=made.audio.lengths, return_dict=True)
        audio = AudioEmbeds(heard.last_hidden_state)
        assert len(made.audio.lengths) == 1
        media["input_features"] = made.audio.features[None]
        media["feature_attention_mask"] = torch.ones(1, int(made.audio.lengths), dtype=torch.long)
    talk = Conversation(
        ThinkerInput(made.prompt, vision, audio),
        None if made.vision is None else made.vision.image_grids,
        None,
        None if made.audio is None else made.audio.lengths,
    )
    result = hf_generate(hf, talk)
    ids = made.prompt.input_ids[None]
    generated = hf.thinker.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=made.prompt.options.thinker.max_tokens,
        eos_token_id=hf.generation_config.eos_token_id,
        pad_token_id=hf.generation_config.pad_token_id,
        **media,
    )
    assert generated[0, ids.shape[1] :].tolist() == result.answer
    return result, talk


def test_the_structure_is_the_published_one(checkpoint: Path) -> None:
    config = hf_model(checkpoint).config
    talker, vocoder = config.talker_config, config.code2wav_config
    assert (talker.num_code_groups, vocoder.num_quantizers, vocoder.sliding_window) == (16, 16, 72)
    assert (talker.text_config.vocab_size, talker.code_predictor_config.vocab_size) == (3072, 2048)
    assert (talker.codec_pad_id, talker.codec_eos_token_id, talker.speaker_id["aiden"]) == (2148, 2150, 2303)
    assert (list(vocoder.upsample_rates), list(vocoder.upsampling_ratios)) == ([8, 5, 4, 3], [2, 2])
    assert talker.text_config.num_experts == config.thinker_config.text_config.num_experts == 128
    assert config.thinker_config.audio_config.num_mel_bins == 128
    assert not (checkpoint / "model.safetensors").exists()


PROMPTS: dict[str, list[ContentPart]] = {
    "text": [TextPart("Tell me about the sea.")],
    "image": [TextPart("What is this?"), ImagePart(media("portrait.png"))],
    "audio": [AudioPart(data=media("voice_short_16k.wav")), TextPart("What did they say?")],
}


@pytest.mark.parametrize("name", PROMPTS)
def test_the_whole_pipeline_equals_hugging_face(
    checkpoint: Path, preprocess: Preprocessor, pipeline: Pipeline, name: str
) -> None:
    oracle, talk = expected(checkpoint, preprocess, request(PROMPTS[name], stream=True))
    assert oracle.margin > CLEAR, "choose another prompt"
    assert oracle.codes.shape[1] == 16 and len(oracle.codes) > 10, "the speech must take two windows"
    for stream in (True, False):
        text, wave = collect(pipeline, request(PROMPTS[name], stream))
        assert text.num_output_tokens == len(oracle.answer)
        assert text.num_input_tokens == len(talk.input.prompt.input_ids)
        assert text.text == load_tokenizer(checkpoint).decode(oracle.answer)
        assert len(wave) == len(oracle.codes) * 1920 - 555
        np.testing.assert_allclose(wave, oracle.waveform, atol=1e-4)
        pipeline.wait_empty()


def collect(pipeline: Pipeline, asked: OmniRequest) -> tuple[TextOutput, np.ndarray]:
    """The end of the text with all of the text, and all of the audio, copied from the relay's memory."""
    sink = Sink()
    pipeline.coordinator.submit(asked, sink)
    chunks, results = sink.wait(60)
    assert (len(chunks) > 3) == asked.stream
    end, last = results["decode"], results["code2wav"]
    assert isinstance(end, TextOutput) and isinstance(last, AudioOutput)
    end.text = "".join(piece.text for piece in [*chunks, end] if isinstance(piece, TextOutput))
    waves = [piece.samples for piece in [*chunks, last] if isinstance(piece, AudioOutput)]
    return end, np.concatenate([np.zeros(0, np.float32), *waves])


def test_tokens_and_codes_equal_hugging_face(checkpoint: Path, preprocess: Preprocessor) -> None:
    """For a prompt that is new every time: the first of a few whose choices are clear."""
    words = ["sea", "light", "a", "seven", "Who", "is", "?", "blue", "!", "to", "the", "写"]
    for _ in range(6):
        text = " ".join(random.choices(words, k=9))
        asked = request([TextPart(text), ImagePart(media("portrait.png"))], True)
        oracle, talk = expected(checkpoint, preprocess, asked)
        if oracle.margin > CLEAR:
            break
    assert oracle.margin > CLEAR
    with WiredStages(checkpoint) as stages:
        answer = stages.submit("r", talk.input)
        assert answer.done.wait(60)
    if answer.error is not None:
        raise answer.error
    assert answer.tokens == oracle.answer, text
    assert answer.codes == oracle.codes.tolist(), text
