"""Record shapes: from a raw dict to a `Document`, one shape a file, one registry (`normalizer.py`)."""

from packer_cli.corpus.records.normalizer import SCHEMA_CHOICES, SHAPES, Normalizer

__all__ = ["SCHEMA_CHOICES", "SHAPES", "Normalizer"]
