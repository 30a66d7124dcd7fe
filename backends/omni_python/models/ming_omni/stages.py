"""Stage factories. Without `gpu_id` they run on the CPU, in float32."""

from __future__ import annotations

from typing import Any, NoReturn

from omni_python.models.loading.dummy import LoadFormat
from omni_python.models.loading.kv_size import KVNeeds
from omni_python.models.loading.placement import Dtype, on_own_stream, placement
from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.ming_omni.architecture import talker_config, thinker_config, vae_config
from omni_python.models.ming_omni.audio_encoder import ClipEncoder, load_audio_encoder
from omni_python.models.ming_omni.audio_vae import latents_ahead, load_audio_decoder, receptive_latents
from omni_python.models.ming_omni.encoder_architecture import encoder_config, image_encoder_config
from omni_python.models.ming_omni.image_encoder import PictureEncoder, load_image_encoder
from omni_python.models.ming_omni.payloads import ChatInput
from omni_python.models.ming_omni.preprocess import Preprocessor
from omni_python.models.ming_omni.prompt import TalkerPrompt, media_tokens
from omni_python.models.ming_omni.segmenter import SegmenterScheduler
from omni_python.models.ming_omni.talker import load_talker
from omni_python.models.ming_omni.talker_runner import TalkerModelRunner
from omni_python.models.ming_omni.thinker import load_thinker
from omni_python.models.ming_omni.thinker_runner import ThinkerModelRunner
from omni_python.models.ming_omni.vocoder import LatentVocoder
from omni_python.models.ming_omni.voices import load_voices
from omni_python.models.preprocessing_stage import preprocessing_stage
from omni_python.models.text.decode import DecodeScheduler
from omni_python.models.text.detokenizer import TokenBytes
from omni_python.preprocessing.image import MAX_PIXELS
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.proto.errors import Unsupported
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.code2wav import Code2WavScheduler
from omni_python.scheduling.device_memory import stage_memory
from omni_python.scheduling.simple import SimpleScheduler
from omni_python.scheduling.torch_scheduler import TorchScheduler


def create_preprocessing(
    model_path: str,
    speech: bool = True,
    workers: int = 1,
    media: dict[str, Any] | None = None,
    audio_seconds: float = 300.0,
    image_pixels: int = MAX_PIXELS,
) -> Scheduler:
    """OmniRequest -> ReadRequest. `speech`: whether the pipeline has the speech stages; `media`: a `MediaPolicy`."""
    loader = MediaLoader(MediaPolicy.of(media))
    preprocessor = Preprocessor(model_path, speech, loader, audio_seconds, image_pixels)
    return preprocessing_stage(preprocessor, loader, workers)


def create_image_encoder(
    model_path: str,
    gpu_id: int | None = None,
    max_batch_patches: int = 8192,
    load_format: LoadFormat = "auto",
    dtype: Dtype = "auto",
) -> SimpleScheduler:
    """Pictures -> PictureEmbeds. At most `max_batch_patches` go through the encoder at once, but a picture is never
    cut."""
    torch_dtype, device = placement(gpu_id, dtype)
    encoder = load_image_encoder(model_path, image_encoder_config(model_path), torch_dtype, device, load_format)
    return SimpleScheduler(PictureEncoder(encoder, max_batch_patches))


def create_audio_encoder(
    model_path: str,
    gpu_id: int | None = None,
    load_format: LoadFormat = "auto",
    dtype: Dtype = "auto",
) -> SimpleScheduler:
    """Clips -> ClipEmbeds."""
    torch_dtype, device = placement(gpu_id, dtype)
    encoder = load_audio_encoder(model_path, encoder_config(model_path), torch_dtype, device, load_format)
    return SimpleScheduler(ClipEncoder(encoder))


def create_aggregate() -> SimpleScheduler:
    """ChatInput -> the same: the work is the merge before it."""

    def compute(merged: ChatInput) -> ChatInput:
        return merged

    return SimpleScheduler(compute)


def create_thinker(
    model_path: str,
    gpu_id: int | None = None,
    max_running: int = 32,
    kv_tokens: int | None = None,
    prefill_tokens: int = 8192,
    decode_stage: str = "decode",
    speech_stage: str | None = "segmenter",
    load_format: LoadFormat = "auto",
    dtype: Dtype = "auto",
    total_gpu_memory_fraction: float | None = None,
) -> TorchScheduler[Any]:
    """ChatInput -> ThinkerResult, tokens streamed. `speech_stage` None for a pipeline that answers in text alone.
    `kv_tokens` None takes as much KV cache as fits into the stage's share of its GPU's memory; without a share, or on
    the CPU, a default."""
    config = thinker_config(model_path)
    torch_dtype, device = placement(gpu_id, dtype)
    memory = stage_memory(gpu_id, total_gpu_memory_fraction)
    thinker = load_thinker(model_path, config, torch_dtype, device, load_format)
    needs = KVNeeds("thinker", config.decoder, torch_dtype, config.context, max_running, prefill_tokens, 65536)
    tokens = needs.tokens(kv_tokens, memory)
    texts = TokenBytes(load_tokenizer(model_path))
    runner = ThinkerModelRunner(thinker, config.end, media_tokens(model_path), texts, decode_stage, speech_stage)
    return on_own_stream(TorchScheduler(runner, max_running, tokens, prefill_tokens, name="thinker"), device, -1)


def create_decode(model_path: str) -> DecodeScheduler:
    return DecodeScheduler(TokenBytes(load_tokenizer(model_path)))


def create_segmenter(model_path: str, talker_stage: str = "talker") -> SegmenterScheduler:
    """The thinker's tokens -> Piece, streamed."""
    return SegmenterScheduler(TokenBytes(load_tokenizer(model_path)), talker_stage)


def create_talker(
    model_path: str,
    gpu_id: int | None = None,
    max_running: int = 32,
    kv_tokens: int | None = None,
    prefill_tokens: int = 8192,
    vae_stage: str = "audio_vae",
    patches_per_chunk: int = 1,
    load_format: LoadFormat = "auto",
    dtype: Dtype = "auto",
    total_gpu_memory_fraction: float | None = None,
) -> TorchScheduler[Any]:
    """Piece -> Latents, streamed. `kv_tokens` as for the thinker."""
    config = talker_config(model_path)
    torch_dtype, device = placement(gpu_id, dtype)
    memory = stage_memory(gpu_id, total_gpu_memory_fraction)
    talker = load_talker(model_path, config, torch_dtype, device, load_format)
    needs = KVNeeds("talker", config.decoder, torch_dtype, config.context, max_running, prefill_tokens, 65536)
    tokens = needs.tokens(kv_tokens, memory)
    voices = load_voices(model_path, talker, vae_config(model_path), load_format)
    runner = TalkerModelRunner(talker, TalkerPrompt(model_path), voices, vae_stage, patches_per_chunk)
    return on_own_stream(TorchScheduler(runner, max_running, tokens, prefill_tokens, name="talker"), device, -1)


def create_audio_vae(
    model_path: str,
    gpu_id: int | None = None,
    first_chunk_latents: int = 3,
    chunk_latents: int = 8,
    left_context: int | None = None,
    max_batch: int = 8,
    load_format: LoadFormat = "auto",
    dtype: Dtype = "float32",
) -> Code2WavScheduler:
    """Latents -> speech. With the one that is looked ahead to, the first 3 latents are the talker's first patch, and 8
    more its next two. `left_context` None takes as much as a sample depends on, so windows join without a seam (all of
    the speech, where the checkpoint's decoder has no sliding window)."""
    config = vae_config(model_path)
    torch_dtype, device = placement(gpu_id, dtype)
    vocoder = LatentVocoder(load_audio_decoder(model_path, config, torch_dtype, device, load_format), config)
    scheduler = Code2WavScheduler(
        vocoder,
        chunk_latents,
        receptive_latents(config) if left_context is None else left_context,
        first_chunk_latents,
        max_batch=max_batch,
        name="audio_vae",
        lookahead=latents_ahead(config),
    )
    return on_own_stream(scheduler, device, 0)


def create_image_generation(model_path: str) -> SimpleScheduler:
    """Declared, since the published model generates images, and refusing whatever comes: it does not exist yet."""

    def refuse(payload: Any) -> NoReturn:
        raise Unsupported("the stage image_generation does not exist yet; ask for text or audio")

    return SimpleScheduler(refuse)
