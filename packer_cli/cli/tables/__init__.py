"""The commands' tables, one file per command."""
