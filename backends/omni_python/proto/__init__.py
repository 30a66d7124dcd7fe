"""What crosses process borders: requests, payloads, control messages, and their encoding."""
