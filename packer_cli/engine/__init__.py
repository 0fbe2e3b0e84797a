"""Where per-part work runs. The result is the same for any number of workers."""
