"""WLB-LLM (arXiv 2503.17924): steps of micro-batches of equal work, packed from a stream of documents.

::

    strategy.py  what the rest of hbpack sees
    arrival.py   the stream: documents in a seeded order, in global batches; the paper's packer, which lets some wait
    packers.py   what `--packing` names: that one, and its baselines
    plan.py      pieces -> plan: which replica runs which micro-batch when
"""
