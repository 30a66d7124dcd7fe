"""What the talker reads of a conversation, against Hugging Face on the recorded conversations."""

from __future__ import annotations

import pytest
import torch

from omni_python.models.qwen3_omni.architecture import model_config
from omni_python.models.qwen3_omni.payloads import TalkerPrompt
from omni_python.models.qwen3_omni.talker_prompt import TalkerTokens, user_part
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.sampling import SamplingParams
from tests.models.tiny_model import checkpoint, hf_model
from tests.oracle import cases


@pytest.fixture(scope="module")
def tokens() -> TalkerTokens:
    return TalkerTokens.of(model_config(checkpoint()))


def prompt_of(ids: torch.Tensor, positions: torch.Tensor, tokens: TalkerTokens) -> TalkerPrompt:
    media = torch.isin(ids, torch.tensor(tokens.media))
    hidden = torch.arange(int(media.sum()), dtype=torch.float32)[:, None]
    return TalkerPrompt(ids, positions, hidden, "Ethan", SamplingParams(), True)


@pytest.mark.parametrize("name", cases.CASES)
def test_positions_are_those_of_hugging_face(name: str, tokens: TalkerTokens) -> None:
    hf = hf_model(checkpoint())
    case = cases.load_case(name)
    ids = torch.from_numpy(case.input_ids)
    part, answer = user_part(prompt_of(ids, torch.from_numpy(case.position_ids), tokens), tokens)
    assert answer == []
    padding = torch.full((tokens.assistant_rows,), tokens.tts_pad)
    grids = [None if g is None else torch.from_numpy(g) for g in (case.image_grids, case.video_grids)]
    lengths = None if case.audio_lengths is None else torch.from_numpy(case.audio_lengths)
    talker_ids = torch.cat([part.ids, padding])
    expected, _ = hf.talker.get_rope_index(
        talker_ids[None], grids[0], grids[1], torch.ones_like(talker_ids)[None], None, lengths, torch.ones(3)
    )
    n = part.num_tokens
    torch.testing.assert_close(part.positions, expected[:, 0, :n].float(), rtol=0, atol=0)
    assert part.next_position == float(expected[0, 0, n])


def test_system_and_assistant_turns_are_left_out(tokens: TalkerTokens) -> None:
    image = tokens.vision[0]
    start, media = tokens.im_start, [tokens.vision_start, image, image]
    ids = torch.tensor(
        [
            *(start, tokens.system, 5),
            *(start, tokens.user, 6, *media),
            *(start, tokens.assistant, 198, 7),
            *(start, tokens.user, 8, *media),
            *(start, tokens.assistant, 198, 9, 10),
        ]
    )
    part, answer = user_part(prompt_of(ids, torch.arange(len(ids)).expand(3, -1), tokens), tokens)
    assert part.ids.tolist() == [start, tokens.user, 6, *media, start, tokens.user, 8, *media]
    assert answer == [9, 10], "an answer that the prompt begins is spoken from its beginning"
    assert part.media_hidden is not None and part.media_hidden[:, 0].tolist() == [0, 1, 2, 3]
    assert part.positions[0].tolist() == list(range(12))


@pytest.mark.parametrize("bad", [[5, 6], [1, 2]], ids=["no turn", "no assistant turn"])
def test_prompts_that_cannot_be_spoken_are_refused(bad: list[int], tokens: TalkerTokens) -> None:
    ids = torch.tensor([tokens.im_start, tokens.user, *bad] if bad == [1, 2] else bad)
    with pytest.raises(InvalidArgument, match="assistant turn"):
        user_part(prompt_of(ids, torch.arange(len(ids)).expand(3, -1), tokens), tokens)
