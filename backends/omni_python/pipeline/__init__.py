"""What runs a pipeline: stages, the processes that hold them, and the coordinator."""
