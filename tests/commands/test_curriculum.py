"""HBP's first steps are short, and say so where there are too few short iterations for 500."""

from __future__ import annotations

import logging

import numpy as np

import packer_cli as hbpack

LENGTHS = np.concatenate([np.full(3000, 200), np.full(60, 3000)]).astype(np.int32)


def test_a_fifth_of_the_short_iterations_comes_first(caplog):
    with caplog.at_level(logging.INFO, logger="hbpack"):
        hbpack.plan(LENGTHS, strategy="hbp", groups="1k:1,4k:2", gpus=4, fill="longest")
    (message,) = [record.getMessage() for record in caplog.records if "curriculum" in record.getMessage()]
    number = int(message.split()[3])
    assert message == (
        f"the curriculum takes {number} steps, not 500: 20% of the short iterations, so that the others mix with the "
        "long ones"
    )
    assert 0 < number < 40


def test_a_curriculum_that_is_short_enough_says_nothing(caplog):
    with caplog.at_level(logging.INFO, logger="hbpack"):
        hbpack.plan(LENGTHS, strategy="hbp", groups="1k:1,4k:2", gpus=4, curriculum_steps=3)
        hbpack.plan(LENGTHS, groups="1k:1,4k:2", gpus=4, curriculum_steps=500)
    assert not [record for record in caplog.records if "curriculum" in record.getMessage()]
