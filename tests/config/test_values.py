"""What configurations derive from their fields, and that nobody changes them."""

from __future__ import annotations

from typing import Any

import pytest

from omni_python.config import ConfigError, EndpointsConfig, RelayConfig
from tests.config.family import SpeechPipelineConfig


def test_configurations_are_frozen() -> None:
    config = SpeechPipelineConfig(model_path="org/Speech-1")
    with pytest.raises(ValueError, match="frozen"):
        config.relay_backend = "nixl"
    with pytest.raises(ValueError, match="frozen"):
        config.stages[0].gpu = 1


def test_derived_values() -> None:
    config = SpeechPipelineConfig(model_path="/models/My Speech-1.5/")
    assert config.resolved_name == "My_Speech-1_5"
    assert config.config_cls == "tests.config.family.SpeechPipelineConfig"
    assert config.resolved_entry_stage == "prepare"
    assert config.terminal_stages == ("decode", "vocoder")
    assert config.gpu_placement == {"thinker": 0, "talker": 1, "vocoder": 1}
    assert config.changed(name="other").resolved_name == "other"
    with pytest.raises(ConfigError, match="entry_stage"):
        config.changed(entry_stage="nowhere")


def test_relay_defaults() -> None:
    relay = RelayConfig()
    assert (relay.slot_size_mb, relay.credits, relay.rank, relay.world_size, relay.device) == (32, 2, None, None, None)


def test_where_sockets_are_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert EndpointsConfig().resolved_base_path == tmp_path
    assert str(EndpointsConfig(base_path="/run/omni").resolved_base_path) == "/run/omni"
