"""The subcommands of `omni`, one module each."""
