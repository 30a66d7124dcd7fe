"""The control plane: where processes meet, and the sockets between them."""
