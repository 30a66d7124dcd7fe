"""Speech in windows is the speech as a whole, whatever the decoder sees, and wherever pieces begin and end."""

from __future__ import annotations

import queue
from dataclasses import replace

import numpy as np
import pytest
import torch

from omni_python.layers.frame_transformer import FrameTransformerConfig
from omni_python.models.loading.dummy import draw_weights
from omni_python.models.ming_omni.architecture import WHOLE, VAEConfig
from omni_python.models.ming_omni.audio_vae import AudioDecoder, latents_ahead, receptive_latents
from omni_python.models.ming_omni.payloads import Latents, LatentsResult
from omni_python.models.ming_omni.vocoder import LatentVocoder
from omni_python.proto.payload import AudioOutput
from omni_python.proto.work import IncomingMessage
from omni_python.scheduling.code2wav import Code2WavScheduler

BACKBONE = FrameTransformerConfig(32, 2, 2, 1, 16, 48, 6, 10000.0, 1e-6, True)
CONFIG = VAEConfig(44100, 8, 4, 10, BACKBONE, 10, 10, BACKBONE, BACKBONE)


def speech(vocoder: LatentVocoder, config: VAEConfig, pieces: list[torch.Tensor], stream: bool) -> list[np.ndarray]:
    """What the stage gives for latents that come three at a time."""
    ahead = latents_ahead(config)
    stage = Code2WavScheduler(vocoder, 5, receptive_latents(config), 2, name="audio_vae", lookahead=ahead)
    stage.start()
    numbered = torch.cat([torch.cat((p, torch.full((len(p), 1), float(n))), dim=1) for n, p in enumerate(pieces)])
    for chunk in numbered.split(3):
        stage.inbox.put(IncomingMessage("r", "stream_chunk", Latents(chunk, stream)))
    stage.inbox.put(IncomingMessage("r", "new_request", LatentsResult(len(numbered), "stop", stream)))
    given = []
    try:
        while True:
            message = stage.outbox.get(timeout=20)
            assert message is not None and isinstance(message.data, AudioOutput)
            given.append(message.data.samples)
            if message.type == "result":
                return given
    except queue.Empty:
        pytest.fail("the stage is silent")
    finally:
        stage.stop()


@pytest.mark.parametrize("window", [6, WHOLE], ids=["window", "whole"])
@pytest.mark.parametrize("upsampling", [1, 2, 3, 4])
def test_windows_join_without_a_seam(window: int, upsampling: int) -> None:
    config = replace(CONFIG, upsampling=upsampling, decoder=replace(BACKBONE, window=window))
    with torch.device("meta"):
        decoder = AudioDecoder(config)
    torch.manual_seed(window % 7 + upsampling)
    vocoder = LatentVocoder(draw_weights(decoder, torch.float32, "cpu"), config)
    pieces = [torch.randn(count, config.latent) for count in (13, 1, 4, 22)]
    with torch.inference_mode():
        expected = torch.cat([decoder(piece[None])[0] for piece in pieces]).numpy()
    streamed, whole = (speech(vocoder, config, pieces, stream) for stream in (True, False))
    assert len(whole) == 1 and len(streamed) > 5
    assert len(expected) == 40 * config.samples_per_latent
    np.testing.assert_allclose(whole[0], expected, atol=1e-5, rtol=0)
    np.testing.assert_allclose(np.concatenate(streamed), expected, atol=1e-5, rtol=0)
