"""Pipelines that compute nothing: for tests of the runtime, benchmarks of its cost, and as the smallest example."""
