"""Loaders in the form that a trainer's own configuration builds, one trainer a file; each imports its trainer."""
