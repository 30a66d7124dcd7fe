"""`WS /v1/realtime`: OpenAI's realtime API over the pipelines of one Triton server."""
