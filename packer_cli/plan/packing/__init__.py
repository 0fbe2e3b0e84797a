"""Packing algorithms, like ones in a file, all with the same signature, by name in `REGISTRY`.

An algorithm takes lengths (int32[n], each 1 .. capacity) and returns `(offsets int64[p+1], order int32[n])`: pack k
holds the samples `order[offsets[k]:offsets[k+1]]`. Every sample is in exactly one pack; no pack is empty.
"""

from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions, parse_packing
from packer_cli.plan.packing.registry import REGISTRY

__all__ = ["REGISTRY", "PackingAlgorithm", "PackingOptions", "parse_packing"]
