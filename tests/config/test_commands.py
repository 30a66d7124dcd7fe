"""`omni compile` and `omni validate` as they are run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omni_python.cli import main
from omni_python.config.files import load_pipeline, save_pipeline
from omni_python.config.schema import PipelineConfig
from tests.config.family import SpeechPipelineConfig

CLASS = "tests.config.family.SpeechPipelineConfig"


def test_compile_a_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "repository"
    overrides = ["--set", "thinker.max_batch=2", "--set", "thinker.note=[a, 1]"]
    named = ["--model-path", "../c", "--name", "speech", "--output", str(output)]
    assert main(["compile", CLASS, *named, *overrides]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == str(output / "speech/1/pipeline.yaml") and all(Path(line).is_file() for line in printed)
    config = load_pipeline(output / "speech/1/pipeline.yaml")
    assert (config.model_path, config.name) == ("../c", "speech")
    assert config.runtime_overrides == {"thinker": {"max_batch": 2, "note": ["a", 1]}}


def test_compile_for_gpus(tmp_path: Path) -> None:
    """Those that declare a share of a GPU go where a number without a stage says; later settings are on top."""
    shares = ["--set=encoder.total_gpu_memory_fraction=0.1", "--set=talker.total_gpu_memory_fraction=0.3"]
    main(["compile", CLASS, "--model-path=m", "--name=speech", "--output", str(tmp_path), *shares])
    file = tmp_path / "speech/1/pipeline.yaml"

    def placed(*settings: str) -> dict[str, object]:
        assert main(["compile", str(file), "--output", str(tmp_path), *(f"--gpu={text}" for text in settings)]) == 0
        return {stage.name: stage.gpu for stage in load_pipeline(file).stages}

    before = placed()
    assert placed("2", "talker=[3]", "vocoder=3") == {**before, "encoder": 2, "talker": [3], "vocoder": 3}
    expected = {**before, "encoder": None, "talker": 1, "vocoder": 1, "thinker": 3}
    assert placed("thinker=3", "1", "vocoder=1", "encoder=null") == expected


def test_compile_a_file_again_with_changes(tmp_path: Path) -> None:
    main(
        [
            "compile",
            CLASS,
            "--model-path",
            "../c",
            "--name",
            "speech",
            "--output",
            str(tmp_path),
            "--set",
            "thinker.a=1",
        ]
    )
    yaml_file = str(tmp_path / "speech/1/pipeline.yaml")
    assert main(["compile", yaml_file, "--output", str(tmp_path), "--set", "thinker.b=x", "--model-path", "../d"]) == 0
    config = load_pipeline(Path(yaml_file))
    assert config.runtime_overrides == {"thinker": {"a": 1, "b": "x"}}
    assert config.model_path == "../d"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["qwen_omni"], "'qwen_omni' is no known pipeline; did you mean 'qwen3_omni'?"),
        ([CLASS], "needs --model-path"),
        (["tests.config.family.Nothing"], "PIPELINE: module 'tests.config.family' has no 'Nothing'"),
        (["tests.config.family.merge"], "is not a subclass of PipelineConfig"),
        (["missing.yaml"], "missing.yaml: cannot be read"),
        ([CLASS, "--model-path", "m", "--set", "thinker=2"], "must look like STAGE.KEY=VALUE"),
        ([CLASS, "--model-path", "m", "--set", "thinker.a.b=2"], "must look like STAGE.KEY=VALUE"),
        ([CLASS, "--model-path", "m", "--set", "thinker.a=["], "is not a YAML value"),
        ([CLASS, "--model-path", "m", "--set", "thinkr.a=1"], "did you mean 'thinker'?"),
        ([CLASS, "--model-path", "m", "--gpu", "thinkr=1"], "did you mean 'thinker'?"),
        ([CLASS, "--model-path", "m", "--gpu", "=1"], "there is no stage ''"),
        ([CLASS, "--model-path", "m", "--gpu", "thinker=a"], "'a' must be a GPU's number, a list of numbers"),
        ([CLASS, "--model-path", "m", "--gpu", "thinker=[a]"], "stages.thinker.gpu: must be a GPU's number"),
        ([CLASS, "--model-path", "m", "--gpu", "0"], "no stage declares total_gpu_memory_fraction; name one"),
    ],
)
def test_compile_errors(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", *arguments, "--output", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("omni compile: ") and message in captured.err
    assert not (tmp_path / "out").exists()


def test_validate_a_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compile", CLASS, "--model-path", "../c", "--name", "speech", "--output", str(tmp_path)])
    capsys.readouterr()
    assert main(["validate", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/speech/1/pipeline.yaml: valid\n" + DESCRIPTION


DESCRIPTION = """\
pipeline speech  (model ../c, relay shm)
┌─ speech (orchestrator) ─────────────────────────────────────────────── CPU ─┐
│  client    ───▶ prepare    inline, shm            submit                    │
└─────────────────────────────────────────────────────────────────────────────┘
┌─ speech_front ──────────────────────────────────────────────────────── CPU ─┐
│ ▶prepare   ┬──▶ encoder    inline, shm            result                    │
│            └──▶ aggregate  local                  result                    │
│  aggregate ┬◀── waits for prepare, encoder                                  │
│            └──▶ thinker    inline, shm            result                    │
└─────────────────────────────────────────────────────────────────────────────┘
┌─ speech_encoder ────────────────────────────────────────────────────── CPU ─┐
│  encoder   ───▶ aggregate  inline, shm            result                    │
└─────────────────────────────────────────────────────────────────────────────┘
┌─ speech_thinker ──────────────────────────────────────────────────── GPU 0 ─┐
│  thinker   ┬──▶ decode     inline, shm            result as needed          │
│            └──▶ talker     inline, cuda_shm, shm  result as needed + stream │
└─────────────────────────────────────────────────────────────────────────────┘
┌─ speech_decode ─────────────────────────────────────────────────────── CPU ─┐
│  decode    ───▶ client     inline, shm            answer                    │
└─────────────────────────────────────────────────────────────────────────────┘
┌─ speech_talker ───────────────────────────────────────────────────── GPU 1 ─┐
│  talker    ───▶ vocoder    local                  result + stream           │
│  vocoder   ───▶ client     inline, shm            answer                    │
└─────────────────────────────────────────────────────────────────────────────┘
"""


def test_validate_explains_which_way_payloads_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    on_gpus: dict[str, dict[str, Any]] = {
        "a": {"process": "a", "gpu": 0, "next": "b"},
        "b": {"process": "b", "gpu": 0, "next": "c", "relay": None},
        "c": {"process": "c", "gpu": 1, "next": "d"},
        "d": {"process": "d", "gpu": 1, "next": "e", "relay": {"device": "cpu"}},
        "e": {"process": "e", "next": "f"},
        "f": {"process": "e", "terminal": True},
    }
    stages: list[Any] = [
        {"name": name, "factory": "tests.config.family.F", "factory_args": {"total_gpu_memory_fraction": 0.4}, **fields}
        for name, fields in on_gpus.items()
    ]
    save_pipeline(PipelineConfig(name="p", model_path="m", relay_backend="nixl", stages=stages), tmp_path / "p.yaml")
    assert main(["validate", "--explain", "--no-import", str(tmp_path / "p.yaml")]) == 0
    printed = capsys.readouterr().out
    ways = {}
    for edge in printed.split("result -> ")[1:]:
        ways[edge[0]] = [line.strip() for line in edge.splitlines()[1:] if line.startswith(" " * 8)]
    inline = "up to 16 KB: in the message, cheaper than a slot and its credit"
    rest = ["larger tensors on the host: shm, same host", "processes on other hosts: nixl, relay_backend"]
    apart = "there from GPU to GPU: nixl_cuda, relay_backend nixl"
    assert ways == {
        "b": [inline, "tensors on the GPU: cuda_shm, same host, same GPU 0, nothing is copied", *rest, apart],
        "c": [inline, "tensors on the GPU: cuda_shm, same host, GPU 0 to GPU 1", *rest, apart],
        "d": [inline, "tensors on the GPU: shm, the receiver keeps no pool on a GPU: copied to the host first", *rest],
        "e": [inline, "tensors on the GPU: shm, the sender's relay.device is cpu: copied to the host first", *rest],
        "f": ["everything: by reference, same process"],
    }
    assert main(["validate", "--no-import", str(tmp_path / "p.yaml")]) == 0
    assert "nothing is copied" not in capsys.readouterr().out


def test_validate_explains_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    share = {"factory": "tests.config.family.F", "factory_args": {"total_gpu_memory_fraction": 0.4}}
    stages: list[Any] = [
        {"name": "a", "process": "a", "gpu": 2, "replicas": 2, "next": "b", **share},
        {"name": "b", "process": "b", "gpu": [0, 1], "replicas": 2, "terminal": True, **share},
    ]
    save_pipeline(PipelineConfig(name="p", model_path="m", stages=stages), tmp_path / "p.yaml")
    assert main(["validate", "--explain", "--no-import", str(tmp_path / "p.yaml")]) == 0
    printed = capsys.readouterr().out
    assert "process a, replicas a@0 GPU 2; a@1 GPU 2" in printed
    assert "process b, replicas b@0 GPU 0; b@1 GPU 1" in printed
    assert "cuda_shm, same host, GPU 2 to GPU 0|1" in printed


def test_validate_reports_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, lacking, bad = (tmp_path / name for name in ("good.yaml", "lacking.yaml", "bad.yaml"))
    save_pipeline(SpeechPipelineConfig(model_path="org/Speech-1"), good)
    lacking.write_text(good.read_text().replace("family.project", "family.projekt").replace("max_batch", "max_batches"))
    bad.write_text(good.read_text().replace("terminal: true", "terminl: true"))
    assert main(["validate", str(bad), str(good), str(lacking)]) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith(f"\n{good}: valid\npipeline Speech-1  (model org/Speech-1, relay shm)\n")
    lines = captured.err.splitlines()
    assert lines[0] == f"{bad}: 2 problems"
    assert lines[1].startswith("  stages.decode.terminl: unknown key; did you mean 'terminal'?")
    assert lines[3] == f"{lacking}: 3 problems"
    assert lines[4].startswith(
        "  stages.prepare.project_payload.encoder: module 'tests.config.family' has no 'projekt'"
    )
    assert main(["validate", "--no-import", str(lacking)]) == 0


def test_validate_needs_a_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(tmp_path)]) == 2
    assert "holds no pipeline" in capsys.readouterr().err
    assert main(["validate", str(tmp_path / "x.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["compil"], ["compile"], ["compile", "--nonsense"]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: omni" in capsys.readouterr().err


def test_files_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", str(tmp_path / "nowhere" / "key")]) == 2
    assert capsys.readouterr().err == f"omni key: {tmp_path}/nowhere/key: No such file or directory\n"


def test_ctrl_c_ends_a_command_that_is_being_imported_without_a_word() -> None:
    """What interrupts here stands for a user: it sends the signal when the parser's module is looked for."""
    code = """
import os, signal, sys

class Impatient:
    def find_spec(self, name, path, target=None):
        if name == "omni_python.commands.parser":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Impatient())
from omni_python.cli import main
main(["--version"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_help_lists_the_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "omni_python.cli", "--help"], capture_output=True, text=True, check=True
    )
    assert "compile" in done.stdout and "validate" in done.stdout


@pytest.mark.parametrize(
    "statement",
    [
        "import omni_python.config",
        "import omni_python.config.files",
        "import omni_python.config.resolve",
        "from omni_python.commands.parser import create_parser; create_parser()",
    ],
)
def test_imports_stay_light(statement: str) -> None:
    code = f"import sys; {statement}; print([m for m in ('torch', 'transformers', 'tritonclient') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
