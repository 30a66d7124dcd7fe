"""What a data set may say, and what is wrong with others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_python.bench.dataset import QUESTIONS, BenchRequest, load_questions, with_options
from omni_python.client._inputs import RequestOptions, request_inputs
from omni_python.proto.errors import InvalidArgument


def written(folder: Path, *lines: object) -> Path:
    path = folder / "requests.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_files_are_found_beside_the_data(tmp_path: Path) -> None:
    (tmp_path / "sounds").mkdir()
    (tmp_path / "sounds" / "a.wav").write_bytes(b"RIFF")
    path = written(tmp_path, {"text": "Hm?", "audios": ["sounds/a.wav"], "voice": "chelsie"}, "\n", {"text": "Oh."})
    first, second = load_questions(path)
    inputs = request_inputs(first.text, first.options, stream=True)
    assert inputs["audios"].tolist() == [b"RIFF"] and inputs["voice"].tolist() == [b"chelsie"]
    assert set(request_inputs(second.text, second.options, stream=True)) == {
        "text_input",
        "sampling_parameters",
        "stream",
    }


def test_a_line_has_the_options_of_the_client() -> None:
    assert {"text"} < {*BenchRequest.__struct_fields__} <= {"text", *RequestOptions.__annotations__}


def test_the_questions_of_the_package_are_read() -> None:
    assert len(load_questions(QUESTIONS)) >= 10


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"txt": "Hi"}, "unknown field `txt`; a request's keys are text, messages"),
        ({"text": 3}, r"Expected `str \| null`, got `int` - at `\$.text`"),
        ("{", "Input data was truncated"),
        ({"images": ["no.jpg"]}, "cannot read .*no.jpg: No such file"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        load_questions(written(tmp_path, {"text": "good"}, line))
    assert "requests.jsonl, line 2" in str(caught.value)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no request in it"):
        load_questions(written(tmp_path, "\n"))


def test_flags_replace_what_the_data_says(tmp_path: Path) -> None:
    path = written(tmp_path, {"text": "Hm?", "voice": "ethan", "sampling": {"seed": 1, "top_k": 2}})
    [question] = with_options(load_questions(path), {"voice": "chelsie", "sampling": {"seed": 5}})
    assert question.options["voice"] == "chelsie"
    assert question.options["sampling"] == {"seed": 5, "top_k": 2}
