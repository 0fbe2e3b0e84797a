"""`python -m tests.benchmark.train` (`make bench-train`): does each strategy's plan take as long as predicted?

It trains: forward and backward of a small Llama over the packs of each plan, rank by rank, from the loader, with real
collectives where ranks share a row. On a CPU it takes CPU time, which does not depend on what else the machine does.
Pipelines run beside it, by wall clock.

::

    sets.py             samples, and a packed set of them for each strategy
    worker.py           one process under torchrun: runs all iterations of its ranks, in turn of all sets
    attention.py        Ulysses and all-gather attention, by what shares the row
    padded.py           padded batches, which no set holds, as the loader would give them
    measured.py         from times of ranks in several rounds to times of iterations, and of rows to a profile
    table.py            prediction beside measurement
    pipelines.py        pipelines: what runs, and the recurrence beside the wall clock
    pipeline_worker.py  one process under torchrun: a stage of each pipeline, alone and with the other
    __main__.py         the command
"""
