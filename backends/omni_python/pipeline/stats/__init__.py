"""Counts and times for /metrics."""
