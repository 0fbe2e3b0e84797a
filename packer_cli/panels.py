"""The panels of a command's help. An option names its panel where it is defined."""

from enum import Enum


class Panel(Enum):
    """A title, in the order of the help."""

    MAIN = "Options"
    TOKENS = "Reading and tokenizing"
    GROUPS = "Groups, model and GPUs"
    PACKING = "Packing"
    BALANCE = "Balance, steps and order"
    OUTPUT = "Output"
    SCALE = "Scale"
