"""An OpenAI-compatible HTTP server in front of a pipeline: a client of Triton, so it can run on another machine."""
