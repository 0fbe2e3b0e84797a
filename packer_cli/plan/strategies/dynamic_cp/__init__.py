"""Context parallelism of a degree that a step's samples decide: FCP, ByteScale and Megatron-LM.

::

    strategy.py     what the rest of hbpack sees
    degrees.py      the degrees, and the packs of samples that need one
    rounds.py       which packs run side by side, on which GPUs
    fcp.py          FCP's dynamic program, which gives GPUs that are left to the packs beside them
    megatron.py     Megatron-LM's scheduler, and its older one of a single degree
    plan.py         the whole data set: its steps, planned one by one, as a plan
"""
