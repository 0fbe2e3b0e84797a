"""Items are drawn as trees: every branch can be read from its root down."""

from __future__ import annotations

import re

from hypothesis import given

from packer_cli.format.trees import GROUP, PAIR, TURNS
from packer_cli.show.lines import part_lines
from packer_cli.show.packs import PartRecord, read_parts
from packer_cli.show.text import Style
from tests.trees import Branch, Item, row_of, rows


def decode(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def branch(masked: str, trained: str, rest: str = "") -> Branch:
    return Branch([*map(ord, masked + trained + rest)], [(len(masked), len(masked + trained))])


def items_of(*items: Item) -> tuple[PartRecord, ...]:
    row = row_of(items)
    row["rewards"][:2] = 0.5, -1
    return read_parts(row, ["chats"], [("chats.jsonl", 3, None)] * len(row["item_ids"]))


def drawn(item: PartRecord, **style: object) -> list[str]:
    return [line.rstrip() for line in part_lines(item, decode, Style(**style))]  # type: ignore[arg-type]


def test_a_pair() -> None:
    [pair] = items_of(Item(PAIR, [branch("How are you?\n", "Fine"), branch("How are you?\n", "Go\naway", "!")], 7))
    assert drawn(pair) == [
        "-- item 0: pair ----------------------------------------------------------------",
        "   id 7, chats.jsonl:3, 26 tokens [0, 26) for 38, 11 trained",
        "   ┬ 12 tokens, shared by chosen, rejected",
        "   │ masked  | How are you?",
        "   ├─ chosen, id 70, reward 0.5: 5 tokens, 17 with those above; 4 trained",
        "   │  masked  |",
        "   │          |",
        "   │  trained | Fine",
        "   └─ rejected, id 70, reward -1: 9 tokens, 21 with those above; 7 trained",
        "      masked  |",
        "              |",
        "      trained | Go",
        "              | away",
        "      masked  | !",
    ]


def test_a_trunk_goes_on_below_the_turns_that_leave_it() -> None:
    turns = [branch("a?", "<b>B."), branch("a?B.c?", "<d>D."), branch("a?B.c?D.e?", "<f>F.")]
    [item] = items_of(Item(TURNS, turns))
    assert [line for line in drawn(item)[2:] if "|" not in line] == [
        "   ┬ 1 token, shared by turn 1, turn 2, turn 3",
        "   ├─ turn 1, id 0, reward 0.5: 6 tokens, 7 with those above; 5 trained",
        "   ├ 4 tokens, shared by turn 2, turn 3",
        "   ├─ turn 2, id 0, reward -1: 6 tokens, 11 with those above; 5 trained",
        "   └─ turn 3, id 0: 10 tokens, 15 with those above; 5 trained",
    ]


def test_forks_beside_a_trunk_equal_branches_and_shared_losses() -> None:
    texts = ["why not", "why me", "why not", "no"]
    [item] = items_of(Item(GROUP, [branch("Q", text) for text in texts]))
    assert [line for line in drawn(item)[2:] if re.search("[┬├└─]", line)] == [
        "   ┬ 4 tokens, shared by completion 1, completion 2, completion 3; 3 trained",
        "   ├─ completion 1, id 0, reward 0.5 = completion 3, id 0: 4 tokens, 8 with those above; 7 trained",
        "   └─ completion 2, id 0, reward -1: 3 tokens, 7 with those above; 6 trained",
        "   ─ completion 4, id 0: 3 tokens; 2 trained",
    ]
    assert "   │ x 3     | why" in drawn(item)
    assert "   │  x 2     |  not" in drawn(item)


def test_long_lines_go_on_and_long_texts_are_shortened() -> None:
    [item] = items_of(Item(PAIR, [branch("中" * 60, "x" * 100), branch("中" * 60, "y" * 900)]))
    lines = drawn(item)
    assert max(sum(2 if char == "中" else 1 for char in line) for line in lines) == 80
    assert sum(line.count("中") for line in lines if re.match("   │ (masked )? *[|:]", line)) == 59
    assert "   │          : " + "x" * 36 in lines
    assert any("tokens left out" in line for line in lines)
    assert not any("left out" in line for line in drawn(item, max_chars=None))


@given(rows())
def test_each_segment_is_drawn_once_in_its_order(items: list[Item]) -> None:
    row = row_of([item._replace(branches=[Branch([ord("a") + i for i in b.ids], b.spans) for b in item.branches])
                  for item in items])  # fmt: skip
    found = read_parts(row, ["chats"], [(None, None, None)] * len(row["item_ids"]))
    for item, record in zip(items, found, strict=True):
        lines = drawn(record)
        text = "".join(re.sub(".*[|] ", "", line) for line in lines if " | " in line)
        assert text == "".join(decode(segment.input_ids.tolist()) for segment in record.segments)
        for of_item, drawn_branch in zip(item.branches, record.branches, strict=True):
            path, at = "", drawn_branch.segment
            while True:
                path = decode(record.segments[at].input_ids.tolist()) + path
                parent = record.segments[at].parent
                if parent is None:
                    break
                at = parent
            assert [ord(char) - ord("a") for char in path] == of_item.ids
