"""The one list of packing algorithms: it feeds the command line, the config's schema, the docs and the tests."""

from __future__ import annotations

from packer_cli.plan.packing import bfd, ffd, isf, next_fit
from packer_cli.plan.packing.base import PackingAlgorithm

REGISTRY: dict[str, PackingAlgorithm] = {
    algorithm.name: algorithm for algorithm in (isf.ALGORITHM, next_fit.ALGORITHM, ffd.ALGORITHM, bfd.ALGORITHM)
}
