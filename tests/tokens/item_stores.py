"""Token stores of items, made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import strategies as st

from packer_cli.corpus.types import Source, TokenBatch
from packer_cli.files import atomic_file
from packer_cli.format.schema import ITEM_VALUES, RowColumns, token_type
from packer_cli.format.tokens import SampleOptions, TokenizerInfo
from packer_cli.format.trees import GROUP, PAIR, SAMPLE, TURNS
from packer_cli.tokens.encode.rows import Items
from packer_cli.tokens.index import PartFile, PartInfo, StoreIndex
from packer_cli.tokens.store import TokenStore, open_store
from packer_cli.tokens.writer import FIGURES, LateColumnsError, PartWriter


def totals(writer: PartWriter) -> dict[str, int]:
    """Samples, tokens and loss tokens of a part, as `PartInfo` names them."""
    return dict(zip(FIGURES, writer.of_slices.sum(axis=0).tolist(), strict=True))


@dataclass
class Item:
    """An item as a test wants it."""

    kind: int
    branches: list[tuple[list[int], list[float]]]
    """Ids and loss mask (weights) of each."""
    rewards: list[float] = field(default_factory=list)
    """Of each branch; empty: none."""
    values: dict[str, float] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether it is just a sample."""
        return len(self.branches) == 1 and self.kind != GROUP and not self.rewards and not self.values


def batch_of(items: list[Item], first_line: int = 1) -> tuple[TokenBatch, Items]:
    """The samples of items, a line each."""
    branches = [branch for item in items for branch in item.branches]
    num = [len(item.branches) for item in items]
    bits = [bit for _, mask in branches for bit in mask]
    samples = TokenBatch(
        lines=np.repeat(np.arange(first_line, first_line + len(items)), num),
        offsets=np.cumsum([0, *(len(ids) for ids, _ in branches)]),
        input_ids=np.array([token for ids, _ in branches for token in ids], dtype=np.int32),
        loss_mask=np.array(bits, dtype=np.bool_ if {*bits} <= {0, 1} else np.float32),
    )
    nan = float("nan")
    rewards = [reward for item in items for reward in item.rewards or [nan] * len(item.branches)]
    return samples, Items(
        offsets=np.cumsum([0, *num]),
        kinds=np.array([item.kind for item in items], dtype=np.int8),
        roles=np.array([role for number in num for role in range(number)], dtype=np.int16),
        rewards=np.array(rewards, dtype=np.float32),
        values={name: np.array([item.values.get(name, nan) for item in items], np.float32) for name in ITEM_VALUES},
    )


def make_item_store(
    folder: Path, parts: list[list[list[Item]]], *, share_from: int = 2, vocab_size: int = 100
) -> TokenStore:
    """A store of parts of batches of items, which share runs of `share_from` tokens or more."""
    infos = []
    for number, batches in enumerate(parts):
        name = f"part-{number:06d}-0000.arrow"
        columns = RowColumns()
        while True:
            try:
                with atomic_file(folder / name) as file:
                    writer = PartWriter(file, token_type(vocab_size), columns)
                    line = 1
                    with mock.patch("packer_cli.tokens.writer.SHARE_FROM", share_from):
                        for batch in batches:
                            if batch:
                                writer.write(*batch_of(batch, line))
                                line += len(batch)
                        writer.close()
                break
            except LateColumnsError as late:
                columns = late.columns
        infos.append(
            PartInfo(
                path=name, fingerprint=str(number),
                files=(PartFile(path=f"file-{number}", source=0, fingerprint="", num_bytes=0, num_rejected=0,
                                **totals(writer)),),
                **totals(writer), kinds=writer.kinds,
                num_branches=writer.num_branches, num_flat_tokens=writer.num_flat_tokens,
                loss_weight=writer.loss_weight,
                num_rejected=0, num_without_loss=0, num_with_special=0, num_open=0, shapes={},
                num_bytes=file.num_bytes, xxh3=file.hexdigest(), backend="tokenizers",
            )
        )  # fmt: skip
    index = StoreIndex(
        fingerprint="x", tokenizer=TokenizerInfo(vocab_size=vocab_size),
        options=SampleOptions(), library_versions={}, sources=(Source(name="a", weight=1),), parts=tuple(infos),
    )  # fmt: skip
    index.write(folder)
    return open_store(folder)


@st.composite
def branches_of_few_words(draw: st.DrawFn, bits: list[float], number: int) -> list[tuple[list[int], list[float]]]:
    """Branches that share prefixes: each goes on from a beginning of another."""
    token = st.integers(0, draw(st.sampled_from([1, 99])))
    found = [draw(st.lists(token, min_size=1, max_size=9))]
    while len(found) < number:
        other = draw(st.sampled_from(found))
        found.append((other[: draw(st.integers(0, len(other)))] + draw(st.lists(token, max_size=5))) or [0])
    return [(ids, [draw(st.sampled_from(bits)) for _ in ids]) for ids in found]


@st.composite
def items(draw: st.DrawFn, bits: list[float]) -> Item:
    """One of any kind."""
    kind = draw(st.sampled_from([SAMPLE, PAIR, GROUP, TURNS]))
    number = {SAMPLE: 1, PAIR: 2}.get(kind) or draw(st.integers(1, 5))
    branches = draw(branches_of_few_words(bits, number))
    has_rewards, has_values = kind == GROUP and draw(st.booleans()), kind == PAIR and draw(st.booleans())
    rewards = [draw(st.sampled_from([0.0, 0.5, -1.0])) for _ in range(number)] if has_rewards else []
    return Item(kind, branches, rewards, {"margin": 0.25, "ref_chosen_logps": -1.5} if has_values else {})


@st.composite
def stores(draw: st.DrawFn) -> list[list[list[Item]]]:
    """Parts of batches."""
    bits = draw(st.sampled_from([[0, 1], [0, 1, 0.5]]))
    some = st.lists(items(bits), max_size=4)
    return draw(st.lists(st.lists(some, max_size=3), min_size=1, max_size=3))
