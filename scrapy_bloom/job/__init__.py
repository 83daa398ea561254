"""The job directory: what a local filter keeps between runs, and how far it can be trusted."""
