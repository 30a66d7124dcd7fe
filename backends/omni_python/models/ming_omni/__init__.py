"""Ming-Omni (Ming-flash-omni-2.0): text in; text out, and speech that a talker of its own speaks from that text."""
