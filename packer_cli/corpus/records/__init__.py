"""Record shapes: from a raw dict to a `Document`, one shape a file, one registry (`normalizer.py`)."""

from packer_cli.corpus.records.normalizer import SHAPES, Normalizer

__all__ = ["SHAPES", "Normalizer"]
