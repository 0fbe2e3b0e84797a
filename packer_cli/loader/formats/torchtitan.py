"""torchtitan: the pair that its trainer unpacks, `input_dict, labels = batch`."""

from __future__ import annotations

import torch

from packer_cli.loader.batch import MicroBatch
from packer_cli.loader.formats.base import Batch, Format, strict_batch


def adapt(micro: MicroBatch) -> tuple[Batch, torch.Tensor]:
    """Return ``({"input", "positions"}, labels)``, all int64 [T], the labels already shifted.

    The trainer takes `positions == 0` for the start of a document, and passes every other key to the model's forward,
    so the dictionary holds only these two. Rows are whole, of a multiple of 2 * sp_size tokens: with context
    parallelism, the trainer slices them itself (`prepare_context_parallel_input`).
    """
    batch = {"input": torch.from_numpy(micro.input_ids), "positions": torch.from_numpy(micro.position_ids)}
    return strict_batch(micro, batch), torch.from_numpy(micro.shift_labels)


FORMAT = Format(adapt=adapt, positions_are_borders=True, sp_slice=False, sp_sharding="zigzag")
