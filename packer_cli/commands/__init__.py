"""The commands, one file each. Each reads one folder, writes one folder, and calls the packages below it.

::

    pack.py       tokenize.py -> plan.py -> write.py: the chain
    rebalance.py, export.py, verify.py              work on a packed set
    stats.py, compare.py, groups.py, simulate.py    study lengths and plans; keep no files
    output.py     checks and locks the output folder, writes `rejected.jsonl`
    samples.py    reads samples from a packed set, a token store, a lengths file or a corpus
    planning.py   turns a token store into a checked plan
    array.py      the processes that the stages run on, and job arrays
"""
