"""The one list of packing algorithms: it feeds the command line, the config's schema, the docs and the tests."""

from __future__ import annotations

from packer_cli.plan.packing import (
    bfd,
    bfd_split,
    bfs,
    decompose,
    ffd,
    ffs,
    ilp,
    isf,
    kk,
    lpt,
    next_fit,
    nnlshp,
    no_packing,
    padded,
    random_fit,
    sorted_fit,
    spfhp,
    wrap,
)
from packer_cli.plan.packing.base import PackingAlgorithm
from packer_cli.plan.packing.brought import take_packing
from packer_cli.plugins import Registry

_OWN = {
    module.ALGORITHM.name: module.ALGORITHM
    for module in (
        isf,
        next_fit,
        ffd,
        bfd,
        ffs,
        bfs,
        spfhp,
        nnlshp,
        lpt,
        kk,
        ilp,
        wrap,
        bfd_split,
        decompose,
        random_fit,
        sorted_fit,
        no_packing,
        padded,
    )
}

REGISTRY: Registry[PackingAlgorithm] = Registry("packings", "packing algorithm", _OWN, take_packing)
"""By name, in the order of tables."""
