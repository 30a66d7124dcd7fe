"""What every model family needs to load a checkpoint: its files, its weights, and where they go."""
