"""The usual way to pack: `datasets.map` with the chat template or the tokenizer, `trl.pack_dataset`, `save_to_disk`.

Needs datasets, transformers and trl, but not hbpack, so it may run in another Python. Prints a line of JSON for each
finished phase.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

Batch = dict[str, list[Any]]

WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
)
WITHOUT_INPUT = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:"
)

BATCH_SIZES = {"documents": 64}
"""They are long, and a thousand at a time only cost memory. `map` takes 1000 else."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--began", type=float, required=True, help="Unix time at which this process was started")
    parser.add_argument("--input", action="append", required=True, help="KIND=FILE: JSONL, or Parquet")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--seq-length", type=int, required=True)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    last = arguments.began

    def done(phase: str) -> None:
        nonlocal last
        now = time.time()
        print(json.dumps({"phase": phase, "seconds": now - last}), flush=True)
        last = now

    from datasets import concatenate_datasets, load_dataset
    from transformers import AutoTokenizer
    from trl import pack_dataset

    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    done("start")
    loaded = {}
    for text in arguments.input:
        kind, path = text.split("=", 1)
        form = "parquet" if path.endswith(".parquet") else "json"
        loaded[kind] = load_dataset(form, data_files=path, split="train")
    done("read")
    encoded = []
    for kind, records in loaded.items():
        if kind != "tokens":
            records = records.map(
                encoder(kind, tokenizer),
                batched=True,
                batch_size=BATCH_SIZES.get(kind, 1000),
                num_proc=arguments.processes,
                remove_columns=records.column_names,
            )
        encoded.append(records)
        done(f"tokenize {kind}")
    samples = concatenate_datasets(encoded)
    packed = pack_dataset(samples, seq_length=arguments.seq_length, strategy=arguments.strategy)
    done("pack")
    packed.save_to_disk(arguments.output)
    done("write")
    counts = {"tokens": _num_tokens(samples), "packs": len(packed), "packed_tokens": _num_tokens(packed)}
    print(json.dumps({"samples": len(samples), **counts}), flush=True)


def encoder(kind: str, tokenizer: Any) -> Callable[[Batch], Batch]:
    """The function that `map` calls for records of a kind."""

    def chats(batch: Batch) -> Batch:
        return {"input_ids": tokenizer.apply_chat_template(batch["messages"], return_dict=True)["input_ids"]}

    def documents(batch: Batch) -> Batch:
        texts = [text + tokenizer.eos_token for text in batch["text"]]
        return {"input_ids": tokenizer(texts, return_attention_mask=False)["input_ids"]}

    def completions(batch: Batch) -> Batch:
        """As in TRL's SFTTrainer: tokenize the prompt, and both together with EOS; mask by the prompt's length."""
        both = [p + c + tokenizer.eos_token for p, c in zip(batch["prompt"], batch["completion"], strict=True)]
        ids = tokenizer(both, return_attention_mask=False)["input_ids"]
        prompts = tokenizer(batch["prompt"], return_attention_mask=False)["input_ids"]
        masks = [[0] * len(p) + [1] * (len(i) - len(p)) for p, i in zip(prompts, ids, strict=True)]
        return {"input_ids": ids, "completion_mask": masks}

    def alpaca(batch: Batch) -> Batch:
        prompts = [
            (WITH_INPUT if context else WITHOUT_INPUT).format(instruction=instruction, input=context)
            for instruction, context in zip(batch["instruction"], batch["input"], strict=True)
        ]
        return completions({"prompt": prompts, "completion": batch["output"]})

    return {
        "chats": chats,
        "documents": documents,
        "texts": documents,
        "prompt-completion": completions,
        "alpaca": alpaca,
    }[kind]


def _num_tokens(samples: object) -> int:
    """The number of tokens. Reads only borders, so it takes no time."""
    import pyarrow.compute as pc

    return pc.sum(pc.list_value_length(samples.data.column("input_ids"))).as_py()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
