"""Adapters for single trainers, one file each, which imports its trainer; parts for loops on transformers models."""
