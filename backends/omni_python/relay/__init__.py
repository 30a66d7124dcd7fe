"""The data plane: how a payload's tensors get from one process to another."""
