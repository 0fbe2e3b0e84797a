"""Hydraulis (arXiv 2412.07894): pipelines of unlike tensor, context and pipeline parallelism in each step.

::

    strategy.py     what the rest of hbpack sees; figures.py: what it says to people
    costs.py        the schemes that memory holds and that are worth having, their seconds and capacity
    layouts.py      layouts of pipelines that pay on the real steps, from a dynamic program over the lengths
    stage1.py       the samples of each pipeline of a step
    step.py         both stages, with the second: the micro-batches of each pipeline
    programs.py     both by integer programming, exact, for few samples
    data_set.py     the whole data set: its steps, planned one by one, as a plan
"""
