"""Tokenizers of the usual families, trained on the shared corpora, because the real ones may not be redistributed.

Each has its family's split pattern, kind of BPE, special tokens and chat template; GPT-2's, cl100k's and Llama 3's
are byte-level, Mistral's is a SentencePiece BPE with byte fallback. They are kept in `bench-out/tokenizers`, since
training takes a minute or two.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmark.measure import ROOT

TRAINED = ROOT / "bench-out" / "tokenizers"
_TRAIN_BYTES = 40_000_000

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' "
    "+ message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + eos_token }}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)


def tokenizer_folder(family: str, data: Path) -> Path:
    """The folder of a family's tokenizer, which is trained first if it is not there.

    Args:
        data: the folder of the shared corpora.
    """
    folder = TRAINED / family
    if not (folder / "tokenizer_config.json").exists():
        print(f"pack: training the {family} tokenizer", file=sys.stderr)
        making = folder.with_name(f".{family}.{os.getpid()}")
        making.mkdir(parents=True)
        tokenizer, config = FAMILIES[family](data)
        (making / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
        (making / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        making.rename(folder)
    return folder


def _texts(data: Path) -> Iterator[str]:
    """Lines of both corpora, together about `_TRAIN_BYTES`."""
    import pyarrow.parquet as pq

    size = 0
    for text in pq.read_table(data / "long_docs.parquet", columns=["text"])["text"].to_pylist()[::3]:
        yield from text.splitlines(keepends=True)
        size += len(text)
        if size > _TRAIN_BYTES * 2 // 3:
            break
    with (data / "sft_messages.jsonl").open(encoding="utf-8") as lines:
        for record in lines:
            for message in json.loads(record)["messages"]:
                yield message["content"]
                size += len(message["content"])
            if size > _TRAIN_BYTES:
                break


def _byte_level(data: Path, pattern: str | None, vocabulary: int, **model: Any) -> Any:
    """A byte-level BPE; the default pattern is GPT-2's."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level]) if split else byte_level
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_texts(data), trainer)
    return tokenizer


def _gpt2(data: Path) -> tuple[str, dict[str, Any]]:
    tokenizer = _byte_level(data, None, 50_256)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return tokenizer.to_str(), _config(_CHATML, eos_token="<|endoftext|>")


def _cl100k(data: Path) -> tuple[str, dict[str, Any]]:
    tokenizer = _byte_level(data, _CL100K, 100_256)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return tokenizer.to_str(), _config(_CHATML, eos_token="<|endoftext|>")


def _llama3(data: Path) -> tuple[str, dict[str, Any]]:
    """cl100k's pattern, whole words before merges, and BOS before every text."""
    from tokenizers import processors

    tokenizer = _byte_level(data, _CL100K, 128_000)
    tokenizer.model.ignore_merges = True
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens(special)
    bos = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
    template = processors.TemplateProcessing(single=f"{bos[0]} $A", pair=f"{bos[0]} $A $B", special_tokens=[bos])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer.to_str(), _config(_LLAMA3, bos_token=special[0], eos_token="<|eot_id|>")


def _mistral(data: Path) -> tuple[str, dict[str, Any]]:
    """Like transformers' converted SentencePiece models: no pre-tokenizer, spaces as letters, byte fallback."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "removed"),
            pre_tokenizers.Metaspace(),
            pre_tokenizers.Punctuation("isolated"),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=32_000, special_tokens=first, limit_alphabet=2_000, max_token_length=16, show_progress=False
    )
    trained.train_from_iterator(_texts(data), trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab=model["vocab"], merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in first[:3]])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    config = _config(_MISTRAL, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    return tokenizer.to_str(), config


def _config(template: str, **special: str) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131_072,
        **special,
        "chat_template": template,
    }


FAMILIES: dict[str, Callable[[Path], tuple[str, dict[str, Any]]]] = {
    "gpt2": _gpt2,
    "cl100k": _cl100k,
    "llama3": _llama3,
    "mistral": _mistral,
}
