"""hbpack: pack, balance and schedule mixed-length training data offline.

The flow, and the rooms that serve it::

    corpus/ -> tokens/ -> plan/ (group, pack, fill, balance, schedule) -> shards/ -> loader/
    text       Arrow      lengths only, pure, numba                     Arrow      torch

Importing this package costs nothing: no torch, numba or pyarrow is loaded.
"""

__version__ = "0.1.0"
