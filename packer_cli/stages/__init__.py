"""The stages of the flow, one file a command: each reads and writes one folder, and calls the rooms below.

::

    pack.py       tokenize.py -> plan.py -> write.py: the chain
    rebalance.py, export.py, verify.py              what is done with a packed set
    stats.py, compare.py, groups.py, simulate.py    what looks at lengths and plans, and leaves nothing behind
    output.py     the output folder: that it is ours, and that one run at a time writes there
    samples.py, lengths.py    samples from wherever a user has them
    planning.py   a token store to a checked plan
    workers.py    the processes that the stages run on
    rejected.py   `rejected.jsonl`; choices.py: what was chosen, in words
"""
