"""The recorded cases are fit for their purpose: clear choices, both kinds of ends, every kind of input."""

from __future__ import annotations

import numpy as np
import pytest

from omni_python.models.qwen3_omni import tiny
from tests.oracle.cases import CASES, load_case


@pytest.mark.parametrize("name", CASES)
def test_every_choice_is_clear(name: str) -> None:
    case = load_case(name)
    assert case.checkpoint == tiny.DEFAULT_HASH
    assert min(case.margins[part] for part in ("thinker", "talker", "code_predictor")) >= 0.005
    assert case.margins["router"] >= 2e-5
    assert case.position_ids.shape == (3, len(case.input_ids))
    frames = case.codes.shape[1]
    assert case.waveform.shape == (frames * 1920 - 555,)
    assert 0.01 < np.abs(case.waveform).max() < 1, "a silent or clipped waveform hides differences"


def test_both_ends_and_all_voices_occur() -> None:
    cases = [load_case(name) for name in CASES]
    assert {case.speech_ends for case in cases} == {case.answer_ends for case in cases} == {"stop", "length"}
    assert {case.voice.lower() for case in cases} == {"ethan", "chelsie", "aiden"}
    for case in cases:
        limit = case.talker_max_tokens - 1
        assert (case.codes.shape[1] == limit) == (case.speech_ends == "length")
