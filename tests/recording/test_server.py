"""Recording and replaying on a real server: what a stage gave once, it gives again in another process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from omni_python.cli import main
from omni_python.client import InvalidRequest, NotSupported, OmniClient, Recorded, RequestFailed, replay
from omni_python.commands.comparing import Tolerance, differences
from omni_python.proto.recording import End, Input, Recording, decode_recording, encode_frame, encode_recording
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.oracle.cases import load_case

STAGES = (
    "preprocessing",
    "image_encoder",
    "audio_encoder",
    "mm_aggregate",
    "thinker",
    "decode",
    "talker_ar",
    "code2wav",
)
SAMPLED = {"temperature": 1.0, "max_tokens": 12, "talker": {"temperature": 0.9, "max_tokens": 25, "ignore_eos": True}}


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left(tiny_server: TritonServer) -> Iterator[None]:
    yield
    with OmniClient(tiny_server.grpc_url) as client:
        assert client.chat("Hello.", modalities=["text"], sampling={"max_tokens": 3}).text
    metrics.wait_empty(tiny_server, "qwen3_omni")


@pytest.fixture(scope="module")
def files(tiny_server: TritonServer) -> dict[str, bytes]:
    """The recordings of all stages for one sampled request with sound, pictures and video, by stage."""
    case = load_case("all")
    with OmniClient(tiny_server.grpc_url) as client:
        events = list(client.stream(messages=case.openai_messages(), sampling={**SAMPLED, "record": list(STAGES)}))
    [recorded] = [event for event in events if isinstance(event, Recorded)]
    assert events[0] is recorded
    return {stage: read(Path(path)) for stage, path in zip(STAGES, recorded.paths, strict=True)}


def read(path: Path) -> bytes:
    end = time.monotonic() + 10
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert path.stat().st_mode & 0o077 == 0, "others can read what users sent"
    return path.read_bytes()


def stubs(server: TritonServer) -> set[int]:
    return {child.pid for child in psutil.Process(server.process.pid).children(recursive=True)}


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_gives_again_what_it_gave(tiny_server: TritonServer, files: dict[str, bytes], stage: str) -> None:
    recording = decode_recording(files[stage])
    assert recording.header.stage == stage and json.loads(recording.header.sampling) == SAMPLED
    assert recording.inputs and recording.outputs[-1].kind == "result"
    again = replay(tiny_server.grpc_url, files[stage], recording.header.model)
    assert list(differences(recording.outputs, again.outputs, Tolerance())) == []


def test_the_talkers_recording_gives_the_same_codes_in_a_new_process(
    tiny_server: TritonServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sampled without a seed: the recording has the one that was drawn."""
    file = tmp_path / "talker.omnirec"
    server = ["--url", tiny_server.grpc_url]
    sampling = ["--sampling", json.dumps(SAMPLED)]
    assert main(["record", "talker_ar", "Tell me a story.", *server, *sampling, "--out", str(file)]) == 0
    before = stubs(tiny_server)
    tiny_server.unload("qwen3_omni_speech")
    while tiny_server.is_model_ready("qwen3_omni_speech"):
        time.sleep(0.1)
    tiny_server.load("qwen3_omni_speech")
    assert stubs(tiny_server) - before, "it is the same process"

    capsys.readouterr()
    status = main(["replay", str(file), *server])
    assert (status, "outputs, equal" in (told := capsys.readouterr().out)) == (0, True), told
    recording = decode_recording(file.read_bytes())
    again = replay(tiny_server.grpc_url, file.read_bytes(), "qwen3_omni_speech")
    codes, codes_again = (
        np.concatenate([o.payload.plain()["codes"] for o in outputs if o.kind == "stream" and o.payload is not None])
        for outputs in (recording.outputs, again.outputs)
    )
    assert len(codes) == recording.outputs[-1].payload.plain()["num_frames"] > 0  # type: ignore[union-attr]
    assert np.array_equal(codes, codes_again)


def test_a_request_that_fails_is_recorded_and_fails_again(
    tiny_server: TritonServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bug.omnirec"
    server = ["--url", tiny_server.grpc_url]
    assert main(["record", "preprocessing", "Hello.", *server, "--temperature", "-1", "--out", str(file)]) == 0
    assert "the request failed: sampling_parameters" in capsys.readouterr().err
    [output] = decode_recording(file.read_bytes()).outputs
    assert output.error is not None and "temperature" in output.error.message
    assert main(["replay", str(file), *server]) == 0


def test_what_differs_is_told(
    tiny_server: TritonServer, files: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = decode_recording(files["talker_ar"])
    inputs = [given for given in recording.inputs if given.payload and given.payload.type == "payloads.AnswerToken"]
    items = tuple(item for item in recording.items if item not in inputs[1:2])  # the answer without its second token
    file = tmp_path / "other.omnirec"
    file.write_bytes(encode_recording(Recording(recording.header, items)))
    assert main(["replay", str(file), "--url", tiny_server.grpc_url]) == 1
    assert "differ" in capsys.readouterr().out


def test_altered_and_truncated_files_are_refused_by_the_server(
    tiny_server: TritonServer, files: dict[str, bytes]
) -> None:
    whole = files["talker_ar"]
    for data, message in (
        (b"", "no recording"),
        (whole[:-1], "truncated"),
        (whole[: len(whole) // 2], "truncated|checksum"),
        (whole[:200] + bytes([whole[200] ^ 1]) + whole[201:], "checksum"),
        (whole[:7] + b"\2" + whole[8:], "version 2"),
        (whole + encode_frame(End()), "after its end"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            replay(tiny_server.grpc_url, data or b"\0", "qwen3_omni_speech")
    with pytest.raises(InvalidRequest, match="no stage 'talker_ar'; its stages are thinker"):
        replay(tiny_server.grpc_url, whole, "qwen3_omni_thinker")


@pytest.mark.parametrize("stage", STAGES)
def test_payloads_of_other_stages_end_the_replay_and_nothing_else(
    tiny_server: TritonServer, files: dict[str, bytes], stage: str
) -> None:
    """Well-formed, and nothing that the stage could ever get."""
    before = stubs(tiny_server)
    header = decode_recording(files[stage]).header
    inputs = [given for name in STAGES for given in decode_recording(files[name]).inputs]
    strange = {given.payload.type: given for given in inputs if given.payload}
    for given in strange.values():
        data = encode_recording(Recording(header, (given,)))
        try:
            outputs = replay(tiny_server.grpc_url, data, header.model, limit=2.0).outputs
        except RequestFailed:
            continue
        assert all(output.error is not None for output in outputs), given
    assert stubs(tiny_server) == before


def test_impossible_tokens_end_the_replay_and_nothing_else(tiny_server: TritonServer, files: dict[str, bytes]) -> None:
    before = stubs(tiny_server)
    recording = decode_recording(files["code2wav"])
    items = []
    for item in recording.items:
        if isinstance(item, Input) and item.payload is not None and item.payload.tensors:
            tensors = np.full(len(item.payload.tensors) // 8, 1 << 40).tobytes()
            item = msgspec.structs.replace(item, payload=msgspec.structs.replace(item.payload, tensors=tensors))
        items.append(item)
    data = encode_recording(Recording(recording.header, tuple(items)))
    outputs = replay(tiny_server.grpc_url, data, recording.header.model).outputs
    assert outputs[-1].error is not None
    assert stubs(tiny_server) == before


@pytest.mark.parametrize(
    ("record", "options", "message"),
    [
        ("vocoder", {}, "no stage 'vocoder'; the stages are preprocessing, "),
        ("talker_ar", {"modalities": ["text"]}, "does not work on this request"),
        (3, {}, "must be a stage's name"),
        ([["thinker"]], {}, "must be a stage's name"),
    ],
)
def test_wrong_wishes_are_refused(
    tiny_server: TritonServer, record: object, options: dict[str, Any], message: str
) -> None:
    with OmniClient(tiny_server.grpc_url) as client, pytest.raises(InvalidRequest, match=message):
        client.chat("Hello.", sampling={"record": record}, **options)


def test_a_server_neither_records_nor_replays_unless_its_operator_lets_it(
    noop_server: TritonServer, files: dict[str, bytes]
) -> None:
    with OmniClient(noop_server.grpc_url, "noop_line") as client:
        with pytest.raises(NotSupported, match="--record-dir"):
            client.chat("x", sampling={"record": "b"})
        with pytest.raises(NotSupported, match="--allow-replay"):
            replay(noop_server.grpc_url, files["decode"], "noop_line_b")
        assert client.chat("x", sampling={"nbytes": 1}).text
