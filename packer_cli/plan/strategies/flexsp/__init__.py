"""FlexSP (arXiv 2412.01523) and beyond: iterations whose groups of GPUs have unlike degrees.

::

    strategy.py     what the rest of hbpack sees
    packing.py      what all parts plan by: seconds and capacity of each degree; packs of the cheapest degrees
    micro_batch.py  the degrees and samples of one micro-batch, by search, with plan/kernels/timed_dealing.py
    batches.py      FlexSP as published, one batch at a time; micro-batches by integer programming
    plan.py         the whole data set at once; all of it as plans
"""
