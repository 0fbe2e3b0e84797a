"""The loader, which runs on GPU nodes. It needs torch, numpy and pyarrow, and nothing of the preparation side.

::

    hbpack.json --> storage.py    the contents of the set; its shards, or this node's copies of them
    ranks/...   --> resume.py     the packs that this rank reads, one row per iteration; epoch and position, and the
                                  sampler of a StatefulDataLoader that resumes by its own state
    shards/...  --> shard_reader.py    memory-mapped packs, numpy views without a copy; read_ahead.py: of remote sets
                        |
    parallel/ <---- build_batch.py  padding, positions, labels, this rank's part of the row;
                        |         passes.py: the passes over its tokens; trees.py: rows whose samples share prefixes
                    formats/      adapters: the keys that a trainer expects; transfer.py: from a worker
                        |
                    dataset.py    PackedDataset: map-style torch data set, resume state

Trainers may also use `steps` (optimizer steps of the plan), `parallel` (process groups of all SP degrees, slicing and
merging, reference attention), `losses` (normalizers), `layer_checkpointing` (a number of checkpointed layers for each
batch) and `separation` (whether a model keeps samples apart). `adapters/` holds what single trainers need.
"""

try:
    import torch  # noqa: F401  (only for a clear message)
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("this needs torch: pip install 'hbpack[torch]'") from None

from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.formats import FORMATS, metadata_of

__all__ = ["FORMATS", "PackedDataset", "metadata_of"]
