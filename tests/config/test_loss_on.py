"""`--loss-on`: which values there are."""

import pytest

from packer_cli.config.models import read_loss_on


@pytest.mark.parametrize(
    ("value", "same"),
    [
        ("completion", "completion"),
        ("all", "all"),
        ("reasoning+last-turn", "last-turn+reasoning"),
        ("tool-calls + reasoning", "reasoning+tool-calls"),
        ("last-turn+no-reasoning", "last-turn+no-reasoning"),
    ],
)
def test_equal_choices_are_equal_text(value, same):
    assert read_loss_on(value) == same


KNOWN = "completion, all, last-turn, reasoning, no-reasoning, tool-calls"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("answers", f"must be one of {KNOWN}, or some of the last four joined by +, got 'answers'"),
        ("", f"must be one of {KNOWN}, or some of the last four joined by +, got ''"),
        ("all+reasoning", "'all' cannot be combined with others, got 'all+reasoning'"),
        (
            "no-reasoning+tool-calls",
            "'no-reasoning' already is all but the reasoning; leave out one of the two, got 'no-reasoning+tool-calls'",
        ),
    ],
)
def test_wrong_values(value, reason):
    with pytest.raises(ValueError) as error:
        read_loss_on(value)
    assert str(error.value) == reason
