"""The `megatron` export as a data set of Megatron-LM's `pretrain_gpt.py --sft`: one row is one pack. ::

    hbpack pack chats.jsonl --tokenizer TOKENIZER --groups 16k:1 --gpus 8 --output OUT
    hbpack export OUT --to megatron --output megatron

Megatron's own GPTDataset reads neither loss masks nor documents: it joins the samples, and cuts them at the sequence
length. Return this one from `train_valid_test_datasets_provider` of pretrain_gpt.py instead::

    return PackedDocuments("megatron", args.seq_length, train_val_test_num_samples[0]), None, None

`--seq-length` is the capacity, and `--dataloader-type single` keeps the order of the rows. With context parallelism,
plan with `--align 2*cp`.
"""

from typing import Any

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset
from torch.utils.data import Dataset


class PackedDocuments(Dataset):
    """Rows of `seq_length` tokens, from the folder of the export; they begin anew until there are `num_samples`."""

    def __init__(self, folder: str, seq_length: int, num_samples: int | None = None, pad_token_id: int = 0) -> None:
        self.tokens, self.masks = IndexedDataset(f"{folder}/tokens"), IndexedDataset(f"{folder}/loss_mask")
        self.borders = self.tokens.document_indices
        self.seq_length, self.pad_token_id = seq_length, pad_token_id
        self.num_samples = num_samples or len(self.borders) - 1

    def __len__(self) -> int:
        """Rows of the training."""
        return self.num_samples

    def __getitem__(self, idx: int) -> dict[str, Any]:
        """Return a pack as SFTDataset does: labels and loss mask one token earlier, and borders of a fixed number."""
        pack = idx % (len(self.borders) - 1)
        begin, end = self.borders[pack], self.borders[pack + 1]
        samples, masks = self.tokens[begin:end], self.masks[begin:end]
        lengths = [len(sample) for sample in samples]
        num_pads = self.seq_length - sum(lengths)
        if num_pads < 0:
            raise ValueError(f"pack {pack} has {sum(lengths)} tokens: set --seq-length to the capacity of the group")
        lengths += [num_pads] if num_pads else []  # pads are a segment of their own
        ids = np.full(self.seq_length + 1, self.pad_token_id, dtype=np.int64)
        mask = np.zeros(self.seq_length + 1, dtype=np.float32)
        num_tokens = self.seq_length - num_pads
        ids[:num_tokens], mask[:num_tokens] = np.concatenate(samples), np.concatenate(masks)
        # As many borders in each row, so that rows can be stacked; Megatron leaves out the last, equal ones.
        cu_seqlens = np.full(self.seq_length + 1, self.seq_length, dtype=np.int32)
        cu_seqlens[: len(lengths) + 1] = np.cumsum([0, *lengths])
        return {
            "tokens": torch.from_numpy(ids[:-1]),
            "labels": torch.from_numpy(ids[1:]),
            "loss_mask": torch.from_numpy(mask[1:]),
            "position_ids": torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])),
            "cu_seqlens": torch.from_numpy(cu_seqlens),
            "max_seqlen": torch.tensor(max(lengths), dtype=torch.int32),
        }
