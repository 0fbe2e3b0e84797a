"""Names and versions of what lies on disk, and what both sides must agree on."""

from __future__ import annotations

from typing import Literal

FORMAT_NAME = "hbpack"
FORMAT_VERSION = 3
MANIFEST_NAME = "hbpack.json"
REJECTED_NAME = "rejected.jsonl"
PLAN_NAME = "plan.arrow"
VALIDATION = "validation"
"""The folder in a set for the set of samples that `--validation` sets aside."""
SHARD_MARKERS = ".shards"
"""Folder in a version for the markers of finished shards, until the manifest is written."""
VERSIONS_NAME = "versions.jsonl"
"""The file beside the versions of a set that lists them."""
STORE_COPY = "store.json"
"""File in a version: the index of the token store as it was then."""
CURRENT = "current"
"""On local disks, the link to the current version."""
STATE_VERSION = 3
"""Version of the state that the loader saves and `hbpack rebalance` reads."""
PACKS_PER_BATCH = 16
"""Rows of each record batch of a shard but the last."""
Mask = Literal["document", "causal"]
"""The tokens that a token of a row sees: the ones before it of its own sample, or all before it."""
Lockstep = int | None
"""Number of GPUs that share collectives in every micro-batch: all (None), a replica's (1), or so many that share the
weights (HSDP)."""
FILLER_TOKENS = 8
"""Tokens for each GPU that shares a filler micro-batch."""
REFERENCE_VALUES = ("ref_chosen_logps", "ref_rejected_logps")
"""A reference model's log-probabilities of a pair: sums over the loss terms of each sample."""
REFERENCE_FOLDER = "reference"
"""The folder in a set for a reference model's log-probabilities, where a trainer computed them."""
ITEM_VALUES = ("margin", *REFERENCE_VALUES)
"""Values that an item may bring, float32; NaN where it brings none."""
