"""Our packing algorithms and those of other trainers, in one run, on the same lengths::

    contenders.py  who is measured, and how it is called
    worker.py      measures one contender in a process of its own
    compare.py     runs them all, and writes the tables and the targets

A peer's function is imported from the package that its users install, and is called as they call it; nothing of a
peer is copied. `worker` and `contenders` import nothing of hbpack before one of its algorithms is asked for, so that
another Python may run them.
"""
