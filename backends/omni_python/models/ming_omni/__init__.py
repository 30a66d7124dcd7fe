"""Ming-Omni (Ming-flash-omni-2.0): text and sound in; text out, and speech that a talker makes of that text."""
