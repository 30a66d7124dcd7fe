"""A Triton backend that serves multi-stage omni models."""

__version__ = "0.1.0"
