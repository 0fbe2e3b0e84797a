"""Hydraulis (arXiv 2412.07894): pipelines of unlike tensor, context and pipeline parallelism in each step.

::

    strategy.py     what the rest of hbpack sees
    candidates.py   the schemes that memory holds and that are worth having, and candidates for layouts of pipelines,
                    from a dynamic program over the lengths
    layouts.py      those that pay on the real steps, or the paper's; what `--packing` names; figures for people
    stage1.py       the samples of each pipeline of a step; the same as printed
    stage2.py       the micro-batches of each pipeline, by search; both stages of a step
    plan.py         the whole data set: its steps, planned one by one, as a plan
"""
