"""scripts/check_image reads the Dockerfile as an engine would; running it takes root, an index and minutes."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from scripts.image_base import BASE_ENVIRONMENT
from scripts.image_build import Given, Stage, follow
from scripts.image_packages import make_index
from scripts.image_steps import instructions, needed, stages

from tests.docker import files
from tests.docker.files import DOCKER

TEXT = (DOCKER / "Dockerfile").read_text("utf-8")


def test_a_target_is_made_of_the_stages_that_it_needs_and_no_others() -> None:
    parts = stages(TEXT)
    for target in ("cpu", "gpu"):
        order = needed(parts, target)
        assert set(order) == {"base", "environment", f"environment-{target}", "runtime", target}
        for place, name in enumerate(order):
            origin, _ = parts[name]
            assert origin in order[:place] or name == "base"
        assert order.index(f"environment-{target}") < order.index(target)


def test_it_reads_what_the_other_tests_read() -> None:
    read = [(name, " ".join(rest.split())) for name, rest in instructions(TEXT)]
    assert read == [(name, " ".join(rest.split())) for name, rest in files.instructions()]


def test_the_target_is_run_as_the_image_says(tmp_path: Path) -> None:
    stage = Stage(tmp_path, BASE_ENVIRONMENT)
    for name in ("base", "runtime"):
        for step, rest in stages(TEXT)[name][1]:
            stage = follow(stage, step, rest, Given(), {})
    assert stage.environment["PATH"] == f"/opt/omni/bin:{BASE_ENVIRONMENT['PATH']}"
    assert (stage.user, stage.folder) == ("1000:1000", "/tmp")
    assert (tmp_path / "tmp").is_dir()
    assert list(stage.entrypoint) == files.execution("ENTRYPOINT")
    assert list(stage.command) == files.execution("CMD")
    assert list(stage.health) == files.execution("HEALTHCHECK")


def test_copies_land_where_an_engine_puts_them(tmp_path: Path) -> None:
    other, stage = Stage(tmp_path / "other", {}), Stage(tmp_path / "root", {})
    (tmp_path / "other" / "opt" / "omni").mkdir(parents=True)
    (tmp_path / "other" / "opt" / "omni" / "link").symlink_to("/nowhere")
    for step, rest in [
        ("WORKDIR", "/build"),
        ("COPY", "LICENSE pyproject.toml ./"),
        ("COPY", "scripts/constraints.txt scripts/"),
        ("COPY", "backends/omni_python/relay /opt/relay"),
        ("COPY", "--from=other /opt/omni /opt/omni"),
    ]:
        stage = follow(stage, step, rest, Given(), {"other": other})
    found = {str(path.relative_to(stage.root)) for path in stage.root.rglob("*")}
    assert {"build/LICENSE", "build/pyproject.toml", "build/scripts/constraints.txt", "opt/omni/link"} <= found
    assert "opt/relay/__init__.py" in found and not any("__pycache__" in name for name in found)


def test_build_arguments_have_defaults_and_last_for_a_stage() -> None:
    stage = Stage(Path("/none"), {})
    assert follow(stage, "ARG", "A=1", Given(), {}).arguments == {"A": "1"}
    assert follow(stage, "ARG", "A=1", Given({"A": "2"}), {}).arguments == {"A": "2"}
    assert follow(stage, "ARG", "A", Given(), {}).arguments == {}


def test_an_instruction_that_it_does_not_know_ends_it() -> None:
    with pytest.raises(SystemExit, match="ONBUILD is not known"):
        follow(Stage(Path("/none"), {}), "ONBUILD", "RUN true", Given(), {})


def test_pip_takes_the_index_of_one_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-1.2+cpu-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("torch-1.2+cpu.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 1.2+cpu\n")
        made.writestr("torch-1.2+cpu.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        made.writestr("torch-1.2+cpu.dist-info/RECORD", "")
    make_index(tmp_path / "index", wheel)
    pip = [sys.executable, "-m", "pip", "--isolated", "download", "--no-deps", f"--dest={tmp_path / 'got'}"]
    subprocess.run([*pip, f"--index-url=file://{tmp_path / 'index'}", "torch==1.2"], check=True, capture_output=True)
    assert [path.name for path in (tmp_path / "got").iterdir()] == [wheel.name]
