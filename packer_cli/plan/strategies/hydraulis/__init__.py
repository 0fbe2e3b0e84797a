"""Hydraulis (arXiv 2412.07894): pipelines of unlike tensor, context and pipeline parallelism in each step.

::

    strategy.py     what the rest of hbpack sees
    schemes.py      the parallel schemes that memory holds and that are worth having
    costs.py        what all parts plan by: seconds and capacity of each parallel scheme
    pipeline.py     the least time of a pipeline, from its samples' sums
    candidates.py   layouts of pipelines for the lengths of the data set, by dynamic program
    layouts.py      those that pay on the real steps; choice.py, what `hbpack groups` says of them
    stage1.py       the samples of each pipeline of a step
    stage2.py       the micro-batches of each pipeline; step.py: both stages
    programs.py     both by integer programming, exact, for few samples
    batches.py      the samples of each step; data_set.py: the whole data set; arrange.py: as a plan
"""
