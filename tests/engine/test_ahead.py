from __future__ import annotations

import threading

import pytest

from packer_cli.shards.write import one_ahead


def test_items_come_in_order_and_one_is_made_ahead():
    made = [threading.Event() for _ in range(3)]

    def items():
        for number, event in enumerate(made):
            event.set()
            yield number

    got = []
    for item in one_ahead(items()):
        if item + 1 < len(made):
            assert made[item + 1].wait(10), "the next item is made while this one is used"
        got.append(item)
    assert got == [0, 1, 2]


def test_an_error_comes_in_its_place():
    def items():
        yield 1
        raise ValueError("broken")

    ahead = one_ahead(items())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="broken"):
        next(ahead)
