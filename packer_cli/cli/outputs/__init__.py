"""What `--json` prints: one record per command."""
