"""What families that answer in text share: conversations to prompts, what clients ask, and tokens to text."""
