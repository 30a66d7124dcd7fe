"""Fish Audio S2-Pro: text (and a voice to clone) in, speech at 44.1 kHz out."""
