"""The usual way to pack: `datasets.map` with the chat template, `trl.pack_dataset`, `save_to_disk`.

Needs datasets, transformers and trl, and nothing of hbpack: it may run in another Python. Each finished phase is
printed as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--began", type=float, required=True, help="Unix time at which this process was started")
    parser.add_argument("--chats", required=True)
    parser.add_argument("--documents", required=True)
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
    chats = load_dataset("json", data_files=arguments.chats, split="train")
    documents = load_dataset("parquet", data_files=arguments.documents, split="train")
    done("read")

    def encode_chats(batch: dict) -> dict:
        encoded = tokenizer.apply_chat_template(batch["messages"], tokenize=True, return_dict=True)
        return {"input_ids": encoded["input_ids"]}

    def encode_documents(batch: dict) -> dict:
        return {"input_ids": tokenizer(batch["text"], return_attention_mask=False)["input_ids"]}

    chats = chats.map(encode_chats, batched=True, num_proc=arguments.processes, remove_columns=chats.column_names)
    done("tokenize chats")
    # Small batches: the documents are long, and a thousand of them at a time only cost memory.
    documents = documents.map(
        encode_documents,
        batched=True,
        batch_size=64,
        num_proc=arguments.processes,
        remove_columns=documents.column_names,
    )
    done("tokenize documents")
    samples = concatenate_datasets([chats, documents])
    packed = pack_dataset(samples, seq_length=arguments.seq_length, strategy=arguments.strategy)
    done("pack")
    packed.save_to_disk(arguments.output)
    done("write")
    counts = {"tokens": _num_tokens(samples), "packs": len(packed), "packed_tokens": _num_tokens(packed)}
    print(json.dumps({"samples": len(samples), **counts}), flush=True)


def _num_tokens(samples: object) -> int:
    """Reads borders only, so it takes no time."""
    import pyarrow.compute as pc

    return pc.sum(pc.list_value_length(samples.data.column("input_ids"))).as_py()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
