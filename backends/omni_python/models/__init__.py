"""Model families: each folder declares a pipeline and what its stages compute."""
