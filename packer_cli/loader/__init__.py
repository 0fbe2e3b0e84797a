"""The loader: what runs on GPU nodes. It needs torch, numpy and pyarrow, and nothing of the preparation side.

::

    hbpack.json --> manifest.py   what the set holds
    ranks/...   --> rows.py       what this rank reads, one row an iteration
    shards/...  --> shards.py     memory-mapped packs, numpy views without a copy; ipc.py: where they lie in the file
                        |
    parallel/ <---- batch.py      MicroBatch: padding, positions, labels, this rank's part of the row;
                        |         passes.py: the passes over its tokens; pages.py: memory that is used again
                    formats/      one adapter a file: the keys a trainer expects; transfer.py: from a worker
                        |
                    dataset.py    PackedDataset: map-style torch data set, resume state; place.py: epoch and position;
                                  sampler.py: for a StatefulDataLoader that goes on by its own state

What a trainer calls besides: `parallel` (process groups of all SP degrees, slices and back, reference attention),
`losses` (normalizers), `checkpointing` (as many checkpointed layers as the batch says) and `separation` (whether a
model keeps samples apart). `adapters/` holds loaders in the form that a trainer's configuration builds.
"""

try:
    import torch  # noqa: F401  (only to say plainly what is missing)
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("packer_cli.loader needs torch: pip install 'hbpack[torch]'") from None

from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.formats import FORMATS, metadata_of

__all__ = ["FORMATS", "PackedDataset", "metadata_of"]
