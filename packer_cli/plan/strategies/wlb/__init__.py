"""WLB-LLM (arXiv 2503.17924): steps of micro-batches of equal work, packed from a stream of documents.

::

    strategy.py  what the rest of hbpack sees; plan.py: pieces -> plan:
    arrival.py   the stream: documents in a seeded order, in global batches
    packers.py   what `--packing` names: delay.py, the paper's; fixed.py, its baselines
    tuning.py    thresholds of the delay queues
    steps.py     what a packer returns, and its figures
    schedule.py  which replica runs which micro-batch when, with dealing.py
"""
