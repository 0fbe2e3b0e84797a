"""One function a command: options in, a typed result out, which `cli/` prints and Python returns.

::

    pack.py -> chain.py: tokenize.py -> plan.py -> write.py; append.py    make a packed set
    rebalance.py, export.py, verify.py, status.py                         work on one
    stats.py, compare.py, groups.py, simulate.py, report.py               study lengths and plans
    planned.py      a plan, made in memory or read; iterations.py: what runs in it
    arguments.py    Python's arguments; options.py: their types, generated from the config models
    produce.py      makes an output of parts, in one run or as the tasks of a job array
    output.py       checks and locks the output folder, writes `rejected.jsonl`; validation.py: OUT/validation
    found.py        what lies at a path; samples.py: the samples of a set, a store, a lengths file or a corpus
    planning.py     turns a token store into a checked plan
    array.py        the processes that commands run on
"""
