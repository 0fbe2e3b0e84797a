"""One function a command: options in, a typed result out, which `cli/` prints and Python returns.

::

    pack.py -> pack_corpus.py: tokenize.py -> plan.py -> write.py; append.py    make a packed set
    rebalance.py, export.py, verify.py, status.py                       work on a packed set
    planned.py, stats.py, compare.py, groups.py, simulate.py, report.py    study lengths and plans
    plan.py             a token store to a checked plan; plan_notes.py: what it leaves out, and notes on it
    arguments.py        Python's arguments; option_types.py: their types, generated from the config models
    engines.py          the processes that commands run on
    output_folder.py    checks and locks the output folder, keeps OUT/validation in step, writes `rejected.jsonl`
    samples.py          the kind of data at a path, and the samples of a set, a store, a lengths file or a corpus
"""
