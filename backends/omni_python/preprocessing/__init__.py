"""Media files of a request to arrays: bounded, and without touching anything but the bytes given."""
