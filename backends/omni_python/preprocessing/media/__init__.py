"""Where the media of a request may come from, and getting them from there by the policy."""
