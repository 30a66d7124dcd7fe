"""Turns that the server finds."""

from __future__ import annotations

import asyncio
import base64

import numpy as np
import openai
import pytest
import torch
from openai.resources.realtime.realtime import RealtimeConnection
from safetensors.torch import load_file

from omni_python.proto.info import PipelineInfo
from omni_python.proto.wav import wav_of_pcm16
from omni_python.serve.openai.errors import ApiError
from omni_python.serve.openai.realtime.audio import Resampler, samples_of
from omni_python.serve.openai.realtime.hearing import Hearing, TurnBegun, TurnEnded
from omni_python.serve.openai.realtime.session import AudioInput, ServerVad, Session
from omni_python.serve.openai.realtime.silero import WINDOW, SileroVad, weights_file
from omni_python.serve.openai.realtime.turns import TurnDetector
from tests.serve.openai.realtime import LONG, b64, chat, conform, joined, kinds, say, until

SILENCE = np.zeros(24000, np.float32)
"""One second."""


@pytest.mark.parametrize("seed", [0, 1])
def test_the_network_is_that_of_its_weights(seed: int) -> None:
    """Against the same layers made of torch's."""
    path = weights_file()
    assert path is not None
    weights = load_file(path)

    def convolve(x: torch.Tensor, n: int, stride: int) -> torch.Tensor:
        return torch.conv1d(x, weights[f"conv{n}.weight"], weights[f"conv{n}.bias"], stride, padding=1).relu()

    cell = torch.nn.LSTMCell(128, 128)
    cell.load_state_dict({name: weights[f"lstm_cell.{name}"] for name in cell.state_dict()})
    generator = np.random.default_rng(seed)
    windows = generator.normal(0, 0.1 * generator.random(20)[:, None], (20, WINDOW)).astype(np.float32)
    network, context, state = SileroVad(), torch.zeros(64), None
    for window in windows:
        x = torch.cat([context, torch.from_numpy(window)])[None, None]
        context = x[0, 0, -64:]
        real, imaginary = torch.conv1d(
            torch.nn.functional.pad(x, (0, 64), "reflect"), weights["stft_conv.weight"], stride=128
        ).chunk(2, dim=1)
        x = (real**2 + imaginary**2).sqrt()
        for n, stride in ((1, 1), (2, 2), (3, 2), (4, 1)):
            x = convolve(x, n, stride)
        with torch.no_grad():
            state = cell(x[:, :, 0], state)
        logit = weights["final_conv.weight"][0, :, 0] @ state[0][0].relu() + weights["final_conv.bias"]
        assert network.probability(window) == pytest.approx(logit.sigmoid().item(), abs=1e-5)


@pytest.mark.parametrize("rate", [24000, 16000, 8000, 44100])
def test_a_turn_is_found_at_any_rate(question: bytes, rate: int) -> None:
    spoken = samples_of(question)
    resampler = Resampler(24000, rate)
    stream = np.concatenate([resampler.push(np.concatenate([SILENCE, spoken, SILENCE, SILENCE])), resampler.end()])
    detector = TurnDetector(ServerVad(silence_duration_ms=500), rate, start=7 * rate)
    edges = [edge for piece in np.array_split(stream, 91) for edge in detector.feed(piece)]
    assert [edge.speaking for edge in edges] == [True, False]
    begin, end = (edge.sample / rate - 7 for edge in edges)
    assert 0.6 < begin < 1.4 and 0.3 < end - (1 + len(spoken) / 24000) < 0.8


def test_noise_is_no_turn() -> None:
    noise = np.random.default_rng(3).normal(0, 0.05, 5 * 24000).astype(np.float32)
    assert TurnDetector(ServerVad(), 24000, 0).feed(noise) == []


def heard(hearing: Hearing, audio: bytes, pieces: int = 40) -> list[TurnBegun | TurnEnded]:
    async def append() -> list[TurnBegun | TurnEnded]:
        parts = np.array_split(np.frombuffer(audio, "<i2"), pieces)
        return [turn for part in parts for turn in await hearing.append(part.tobytes())]

    return asyncio.run(append())


def test_every_turn_holds_its_own_sound(question: bytes) -> None:
    hearing = Hearing(AudioInput(turn_detection=ServerVad(prefix_padding_ms=100, silence_duration_ms=300)))
    second = bytes(2 * 24000)
    stream = second + question + second + question + second
    turns = heard(hearing, stream)
    assert [type(turn) for turn in turns] == [TurnBegun, TurnEnded, TurnBegun, TurnEnded]
    for begun, ended in zip(turns[::2], turns[1::2], strict=True):
        assert isinstance(begun, TurnBegun) and isinstance(ended, TurnEnded) and begun.item_id == ended.item_id
        assert ended.audio == stream[begun.start_ms * 48 : begun.start_ms * 48 + len(ended.audio)]
        assert len(ended.audio) == 48 * (ended.end_ms - begun.start_ms)
    assert turns[0].item_id != turns[2].item_id


def test_the_buffer_is_bounded(question: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_python.serve.openai.realtime.hearing.MAX_SECONDS", 1)
    listening = Hearing(AudioInput(turn_detection=ServerVad()))
    second = bytes(2 * 24000)
    assert heard(listening, 20 * second, 100) == []  # silence is forgotten
    turns = heard(listening, question)  # longer than the bound: it becomes several turns
    assert [turn for turn in turns if isinstance(turn, TurnEnded) and 40000 < len(turn.audio) <= 48000]
    told = Hearing(AudioInput())
    heard(told, second, 3)
    with pytest.raises(ApiError, match="at most 1 s; commit or clear it"):
        heard(told, second, 1)
    assert told.commit()[1] == second
    with pytest.raises(ApiError, match="holds 0 ms"):
        told.commit()
    heard(told, second, 1)
    told.clear()
    with pytest.raises(ApiError, match="holds 0 ms"):
        told.commit()


def test_without_the_package_turns_are_the_clients_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Session.new("m", PipelineInfo()).audio.input.turn_detection == ServerVad()
    monkeypatch.setattr("omni_python.serve.openai.realtime.session.weights_file", lambda: None)
    session = Session.new("m", PipelineInfo())
    assert session.audio.input.turn_detection is None
    change = Session(type="realtime", audio={"input": {"turn_detection": {"type": "server_vad"}}})  # type: ignore[arg-type]
    with pytest.raises(ApiError, match="needs the package silero-vad") as refused:
        session.changed(change, PipelineInfo())
    assert refused.value.param == "session.audio.input.turn_detection"


def test_the_server_finds_turns_and_a_speaker_interrupts(
    aborted: None, connection: RealtimeConnection, question: bytes, sdk: openai.OpenAI
) -> None:
    detection = {"type": "server_vad", "silence_duration_ms": 400, "prefix_padding_ms": 200}
    connection.session.update(session={"type": "realtime", "audio": {"input": {"turn_detection": detection}}})  # type: ignore
    assert connection.recv().session.audio.input.turn_detection.threshold == 0.5  # type: ignore[union-attr]
    silence = bytes(2 * 24000)
    for piece in np.array_split(np.frombuffer(silence + question + silence + silence, "<i2"), 30):
        connection.input_audio_buffer.append(audio=b64(piece.tobytes()))
    events = until(connection)
    assert kinds(events)[:6] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
    ]
    conform(events)
    started, stopped, committed = events[:3]
    length = len(question) / 2 / 24
    assert 500 < started.audio_start_ms < 1200 and 700 + length < stopped.audio_end_ms < 1700 + length
    assert started.item_id == stopped.item_id == committed.item_id == events[3].item.id
    connection.conversation.item.retrieve(item_id=committed.item_id)
    audio = base64.b64decode(connection.recv().item.content[0].audio)  # type: ignore[union-attr, arg-type]
    assert len(audio) / 2 / 24 == pytest.approx(stopped.audio_end_ms - started.audio_start_ms, abs=1)
    wav = b64(wav_of_pcm16(audio, 24000))
    heard = {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}}]}
    answer = joined(events, "response.output_audio_transcript.delta")
    assert answer == chat(sdk, [heard]).choices[0].message.content

    say(connection, "Tell me more.")
    connection.response.create(response=LONG)
    until(connection, "response.output_audio_transcript.delta")
    connection.input_audio_buffer.append(audio=b64(question))
    events = until(connection, "input_audio_buffer.speech_started")
    [done] = [event for event in events if event.type == "response.done"]
    assert done.response.status == "cancelled" and done.response.status_details.reason == "turn_detected"
