"""Qwen2.5-Omni: text, audio and images in; text and speech out."""
