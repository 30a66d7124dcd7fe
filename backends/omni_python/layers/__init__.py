"""Plain-torch layers that autoregressive stages share."""
