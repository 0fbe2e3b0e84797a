"""Loaders that a trainer's own configuration builds, one file per trainer; each imports its trainer."""
