"""Qwen3-Omni: thinker, talker with its code predictor, and code2wav, as eight stages."""
