"""Qwen2.5-Omni: text, audio, images and video in; text and speech out."""
