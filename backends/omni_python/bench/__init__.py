"""The load generator of `omni bench`: requests to a running pipeline, what a listener waits for, what it costs."""
