"""Flat preference pairs, as ms-swift orders them: every chosen sample of the row, then every rejected one."""

from __future__ import annotations

from packer_cli.loader.batch import MicroBatch
from packer_cli.loader.formats import transformers
from packer_cli.loader.formats.base import Batch, Format
from packer_cli.loader.trees import PairBuilder


def adapt(micro: MicroBatch) -> Batch:
    """The keys of format "transformers", for B pairs: `cu_seq_lens_q/k` int32 [2B+1], and [2B+2] with padding.

    Sample b is the chosen one of pair b, and sample B + b the rejected one. They share nothing, so a row may be longer
    than the capacity, by the prefixes that are there twice.
    """
    return transformers.adapt(micro)


FORMAT = Format(adapt=adapt, takes_weights=True, builder=PairBuilder)
