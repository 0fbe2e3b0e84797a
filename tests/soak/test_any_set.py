"""Random corpora of flat samples, pairs, groups and turns: each set holds them, as plain Python reads the records."""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import run
from tests.naive.prefix_trees import make_tree
from tests.reference import home, rank_rows, read_rows

WORDS = ["rain", "sun", "fog", "snow", "wind", "ice", "hail", "storm", "cloud", "frost", "dew", "mist"]
STRATEGIES = ("balanced", "hbp", "naive", "longalign-packing")
PACKINGS = ("bfs", "isf", "ffd", "bfd", "spfhp", "next-fit")


class Branch(NamedTuple):
    ids: list[int]
    loss: dict[int, float]
    """The weight of each token that carries a loss."""


class Record(NamedTuple):
    value: dict[str, Any]
    branches: list[Branch]


Maker = Callable[[random.Random, Any, bool], Record]


def words(rng: random.Random, most: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))


def weight_of(rng: random.Random) -> float:
    return rng.choice([1.0, 1.0, 1.0, 0.5, 2.0])


def branch(ids: list[int], places: list[int], weight: float) -> Branch:
    return Branch(ids, {place: weight for place in places if place > 0})


def text(rng: random.Random, tokenizer: Any, branches: bool) -> Record:
    value = {"text": words(rng, 300), "weight": weight_of(rng)}
    ids = [*tokenizer(value["text"])["input_ids"], tokenizer.eos_token_id]
    return Record(value, [branch(ids, [*range(len(ids))], value["weight"])])


def tokens(rng: random.Random, tokenizer: Any, branches: bool) -> Record:
    ids = [rng.randrange(100) for _ in range(rng.randint(2, 400))]
    labels = [each if rng.random() < 0.7 else -100 for each in ids]
    labels[-1] = ids[-1]
    places = [place for place, label in enumerate(labels) if label != -100]
    return Record({"input_ids": ids, "labels": labels}, [branch(ids, places, 1.0)])


def chat(rng: random.Random, tokenizer: Any, branches: bool) -> Record:
    messages = []
    for _ in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": words(rng, 80)})
        messages.append({"role": "assistant", "content": words(rng, 80)})
    value = {"messages": messages, "weight": weight_of(rng)}
    found = []
    for stop in range(2, len(messages) + 1, 2) if branches else [len(messages)]:
        out = tokenizer.apply_chat_template(messages[:stop], return_dict=True, return_assistant_tokens_mask=True)
        mask, first = out["assistant_masks"], 0
        if branches:  # The last turn alone is trained, and what stands before it is the prompt.
            prompt = tokenizer.apply_chat_template(messages[: stop - 1], add_generation_prompt=True, return_dict=False)
            first = len(prompt)
        places = [place for place, is_loss in enumerate(mask) if is_loss and place >= first]
        found.append(branch(out["input_ids"], places, value["weight"]))
    return Record(value, found)


def answered(prompt: str, answers: list[str], tokenizer: Any, weight: float) -> list[Branch]:
    """The loss begins where the tokens of the prompt and of any prompt with its answer first differ."""
    alone = tokenizer(prompt)["input_ids"]
    whole = [[*tokenizer(prompt + answer)["input_ids"], tokenizer.eos_token_id] for answer in answers]
    same = [sum(itertools.takewhile(bool, map(int.__eq__, alone, ids))) for ids in whole]
    return [branch(ids, [*range(min(same), len(ids))], weight) for ids in whole]


def pair(rng: random.Random, tokenizer: Any, branches: bool) -> Record:
    prompt, chosen, rejected = words(rng, 300), " " + words(rng, 60), " " + words(rng, 60)
    value = {"prompt": prompt, "chosen": chosen, "rejected": rejected, "weight": weight_of(rng)}
    return Record(value, answered(prompt, [chosen, rejected], tokenizer, value["weight"]))


def token_pair(rng: random.Random, tokenizer: Any, branches: bool) -> Record:
    sizes = rng.randint(1, 500), rng.randint(1, 60), rng.randint(1, 60)
    prompt, *answers = ([rng.randrange(100) for _ in range(size)] for size in sizes)
    found = [branch(prompt + each, [*range(len(prompt), len(prompt + each))], 1.0) for each in answers]
    return Record({"prompt_ids": prompt, "chosen_ids": answers[0], "rejected_ids": answers[1]}, found)


def group(rng: random.Random, tokenizer: Any, branches: bool) -> Record:
    prompt, answers = words(rng, 300), [" " + words(rng, 40) for _ in range(rng.randint(2, 6))]
    return Record({"prompt": prompt, "completions": answers}, answered(prompt, answers, tokenizer, 1.0))


KINDS: dict[str, tuple[Maker, ...]] = {
    "flat": (text, tokens, chat),
    "pairs": (pair, token_pair),
    "groups": (group,),
    "turns": (chat,),
    "mixed": (text, chat, pair, token_pair, group),
}


class Piece(NamedTuple):
    start: int
    ids: list[int]
    loss: dict[int, float]


def pieces_of(row: dict[str, Any]) -> list[tuple[int, Piece]]:
    """The (sample, piece) of each branch of a shard's row, with the work of the row checked by its definition."""
    assert row["num_tokens"] == len(row["input_ids"])
    assert row["num_loss_tokens"] == sum(
        stop - start for start, stop in zip(row["loss_starts"], row["loss_stops"], strict=True)
    )
    weights = row.get("loss_weights") or [1.0] * len(row["loss_starts"])
    spans = [*zip(row["loss_starts"], row["loss_stops"], weights, strict=True)]
    found: list[tuple[int, Piece]] = []
    if "segment_starts" not in row:
        borders = row["cu_seqlens"]
        assert row["attention_work"] == sum((stop - start) ** 2 for start, stop in itertools.pairwise(borders))
        for at, (first, stop) in enumerate(itertools.pairwise(borders)):
            loss = {k - first: weight for start, end, weight in spans for k in range(start, end) if first <= k < stop}
            piece = Piece(row["sample_starts"][at], row["input_ids"][first:stop], loss)
            found.append((row["sample_ids"][at], piece))
        return found
    starts, parents = row["segment_starts"], row["segment_parents"]
    depths: list[int] = []
    work = 0
    for (first, stop), parent in zip(itertools.pairwise(starts), parents, strict=True):
        before = depths[parent] if parent >= 0 else 0
        depths.append(before + stop - first)
        work += depths[-1] ** 2 - before**2
    assert row["attention_work"] == work
    leaves = {*range(len(parents))} - {*parents}
    assert row["num_path_tokens"] == sum(depths[leaf] for leaf in leaves)
    rest = iter(spans)
    for at, (segment, count) in enumerate(zip(row["branch_segments"], row["branch_loss_spans"], strict=True)):
        ids: list[int] = []
        while segment >= 0:
            ids = row["input_ids"][starts[segment] : starts[segment + 1]] + ids
            segment = parents[segment]
        loss = {k: weight for start, stop, weight in itertools.islice(rest, count) for k in range(start, stop)}
        found.append((row["sample_ids"][at], Piece(row["sample_starts"][at], ids, loss)))
    assert next(rest, None) is None
    return found


def check_set(folder: Path, records: list[Record], overflow: str, gpus: int, epochs: int, *, shares: bool) -> None:
    folder = home(folder)
    manifest = json.loads((folder / "hbpack.json").read_text())
    rejected = folder / "rejected.jsonl"
    left_out = {json.loads(line)["line"] for line in rejected.open()} if rejected.exists() else set()
    expected = [branch for record in records for branch in record.branches]
    owners = [line for line, record in enumerate(records, 1) for _ in record.branches]
    seen: dict[int, list[Piece]] = defaultdict(list)
    sizes: dict[int, int] = {}
    for number, own in enumerate(manifest["groups"]):
        limit = own["capacity"]
        for shard in own["shards"]:
            for row in read_rows(folder / shard["path"]):
                assert row["group"] == number
                assert row["num_tokens"] <= limit
                assert row.get("num_path_tokens", 0) <= 2 * limit
                sizes[row["pack_id"]] = own["sp_size"]
                pieces = pieces_of(row)
                for sample, piece in pieces:
                    seen[sample].append(piece)
                if shares and "item_ids" in row:
                    check_sharing(row, expected, pieces)
    dropped = {owner for sample, owner in enumerate(owners) if sample not in seen}
    assert dropped <= left_out, "a record is neither in a shard nor rejected"
    longest = manifest["groups"][-1]["capacity"]
    if all(len(record.branches) == 1 for record in records) and overflow != "truncate":
        fits = {sample for sample, own in enumerate(expected) if overflow == "split" or len(own.ids) <= longest}
        assert seen.keys() == fits
    for sample, found in seen.items():
        check_branch(expected[sample], sorted(found), longest, overflow)
    for epoch in range(epochs):
        check_ranks(folder, sizes, gpus, epoch)


def check_branch(wanted: Branch, found: list[Piece], longest: int, overflow: str) -> None:
    """The pieces of a branch are the branch; one that was cut off is its beginning."""
    assert [piece.start for piece in found] == [0, *itertools.accumulate(len(piece.ids) for piece in found[:-1])]
    ids = [token for piece in found for token in piece.ids]
    assert ids == wanted.ids[: len(ids)]
    if len(ids) < len(wanted.ids):
        assert overflow in ("split", "truncate")
    loss = {piece.start + place: weight for piece in found for place, weight in piece.loss.items()}
    starts = {piece.start for piece in found}  # Nothing predicts the first token of a piece.
    places = {place: weight for place, weight in wanted.loss.items() if place < len(ids) and place not in starts}
    assert loss == places


def check_sharing(row: dict[str, Any], expected: list[Branch], pieces: list[tuple[int, Piece]]) -> None:
    """Whole items take as many tokens as the prefix tree of their branches has."""
    at = 0
    borders = [*row["cu_seqlens"]]
    total, is_whole = 0, True
    for count in row["item_branches"]:
        own = pieces[at : at + count]
        is_whole &= all(piece.ids == expected[sample].ids for sample, piece in own)
        total += len(make_tree([piece.ids for _, piece in own], 128).input_ids)
        at += count
    assert at == len(pieces)
    assert borders[-1] == row["num_tokens"]
    if is_whole:
        assert row["num_tokens"] == total


def check_ranks(folder: Path, sizes: dict[int, int], gpus: int, epoch: int) -> None:
    """Each pack is trained once in an epoch, by as many ranks in a row as share it, in one iteration."""
    readers: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for rank in range(gpus):
        rows = rank_rows(folder, rank, f"epoch-{epoch:03d}")
        assert [row["iteration"] for row in rows] == [*range(len(rows))]
        for row in rows:
            if row["pack"] >= 0:
                readers[row["pack"]].append((row["iteration"], rank))
    assert readers.keys() == sizes.keys()
    for pack, found in readers.items():
        assert len({iteration for iteration, _ in found}) == 1
        ranks = [rank for _, rank in found]
        assert ranks == [*range(ranks[0], ranks[0] + sizes[pack])]


def pack_one(seed: int, folder: Path, tokenizer: Any, path: Path) -> None:
    """Pack a random corpus with random options, and check the set."""
    rng = random.Random(seed)
    kind = rng.choice([*KINDS])
    branches = kind in ("turns", "mixed")
    records = [rng.choice(KINDS[kind])(rng, tokenizer, branches) for _ in range(rng.randint(1, 25))]
    corpus = folder / "records.jsonl"
    corpus.write_text("".join(json.dumps(record.value) + "\n" for record in records), encoding="utf-8")
    gpus, overflow = rng.choice([1, 2, 4, 8]), rng.choice(["split", "truncate", "drop"])
    capacities = sorted(rng.sample([64, 128, 256, 384, 512, 1024, 2048], rng.randint(1, 3)))
    strategy = rng.choice(STRATEGIES)
    if strategy in ("naive", "longalign-packing"):
        capacities = capacities[-1:]  # They plan with one group.
    degrees = sorted(rng.choice([each for each in (1, 2, 4) if each <= gpus]) for _ in capacities)
    epochs, shares = rng.randint(1, 2), rng.random() < 0.8
    given: list[object] = ["--groups", ",".join(f"{a}:{b}" for a, b in zip(capacities, degrees, strict=True))]
    given += ["--gpus", gpus, "--overflow", overflow, "--epochs", epochs, "--seed", seed, "--workers", 1]
    given += ["--strategy", strategy]
    if kind == "flat" and strategy != "longalign-packing" and rng.random() < 0.5:
        given += ["--packing", rng.choice(PACKINGS)]
    if rng.random() < 0.5:
        given += ["--global-tokens", rng.choice([1024, 4096])]
    if not shares:
        given += ["--no-share-prefixes"]
    if branches:
        given += ["--turns", "branch"]
    done = run(main, "pack", corpus, "--tokenizer", path, *given, "--output", folder / "out")
    if done.code and "nothing to plan" in done.stderr:
        return
    assert done.code == 0, (seed, given, done.stderr)
    check_set(folder / "out", records, overflow, gpus, epochs, shares=shares)
    done = run(main, "verify", folder / "out")
    assert done.code == 0, (seed, given, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def tokenizer(repo: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(repo / "examples" / "sample" / "tokenizer")


@pytest.mark.parametrize("seed", range(10))
def test_ten_corpora(tmp_path, tokenizer, repo, seed):
    pack_one(seed, tmp_path, tokenizer, repo / "examples" / "sample" / "tokenizer")


@pytest.mark.soak
@pytest.mark.parametrize("start", range(100, 1100, 100))
def test_a_thousand_corpora(tmp_path, tokenizer, repo, start):
    for seed in range(start, start + 100):
        folder = tmp_path / str(seed)
        folder.mkdir()
        pack_one(seed, folder, tokenizer, repo / "examples" / "sample" / "tokenizer")
