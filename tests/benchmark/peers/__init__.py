"""hbpack's packing algorithms and those of other trainers, in one run, on the same lengths::

    contenders.py  the contenders, and how to call them
    worker.py      measures one contender in its own process
    compare.py     runs them all, and writes the tables and the targets

A peer's function is imported from the package that its users install, and called as they call it; no code of a peer is
copied. `worker` and `contenders` only import hbpack for its own algorithms, so that another Python may run them.
"""
