"""FlexSP (arXiv 2412.01523) and beyond: iterations whose groups of GPUs have unlike degrees.

::

    strategy.py     what the rest of hbpack sees
    costs.py        what all parts plan by: seconds and capacity of each degree
    micro_batch.py  the degrees and samples of one micro-batch, by search, with plan/kernels/timed_dealing.py
    milp.py         the same by integer programming, exact, for small batches and for buckets of lengths
    batches.py      FlexSP as published: one batch at a time
    arrange.py      the whole data set at once, as a plan: packing.py, then iterations.py
"""
