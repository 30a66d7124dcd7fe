"""Traces of requests: what stages note, put together by the orchestrator, and sent to a collector."""
