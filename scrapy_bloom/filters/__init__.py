"""Where the bits live: one protocol, one file for each backend."""
