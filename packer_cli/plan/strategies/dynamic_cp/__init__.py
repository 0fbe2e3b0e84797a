"""Context parallelism of a degree that a step's samples decide: FCP, ByteScale and Megatron-LM.

::

    strategy.py    what the rest of hbpack sees
    rounds.py      the degrees, and which packs run side by side
    schedulers.py  packs of samples that need a degree; rounds as FCP's dynamic program and Megatron-LM's schedulers
                   form them
    plan.py        the whole data set: its steps, planned one by one, as a plan
"""
