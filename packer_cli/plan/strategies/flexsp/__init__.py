"""FlexSP (arXiv 2412.01523) and beyond: iterations whose groups of GPUs have unlike degrees.

::

    strategy.py     what the rest of hbpack sees
    costs.py        what all parts plan by: seconds and capacity of each degree
    micro_batch.py  the degrees and samples of one micro-batch, by search, with kernels in
                    degree_sets.py and plan/kernels/timed_dealing.py
    milp.py         the same by integer programming, exact, for small batches
    buckets.py      length buckets of the least rounding, for the integer program
    batches.py      FlexSP as published: one batch at a time
    data_set.py     the whole data set at once: packing.py, then iterations.py; arrange.py: as a plan
"""
