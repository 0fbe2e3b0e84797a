"""Benchmarks: hbpack and a peer or a physical floor, measured in the same run, as ratios of medians.

`python -m tests.benchmark [names...]` (or `make bench`) runs them and writes their tables into docs/benchmarks/;
pytest never collects them::

    __main__.py    the registry and the command line
    pack.py        `hbpack pack` from a cold start, beside the usual way
    pack_rows.py   the same for each kind of record and family of tokenizers
    record_kinds.py, families.py    the corpora and the tokenizers of those rows
    usual_way.py   the usual way: datasets.map with the chat template, trl.pack_dataset, save_to_disk
    rival.py       runs it
    write.py       `hbpack write`, beside `cp -r` and `sync` of its output
    loader.py      PackedDataset, beside a plain copy of the tensors it returns, and other loaders
    loaders/       the measurements of `loader`, each in its own process
    plan.py        packing algorithms and build_plan, beside np.sort of the lengths
    peers/         packing algorithms, beside those of other trainers
    scale.py       the whole plan of 1 to 100 million samples: time and peak memory
    gpu.py         a profile's predictions beside real packs, on a GPU; run by `make bench-gpu`
    measure.py     wall time, CPU time and memory of a tree of processes; medians
    report.py      tables, and the marked parts of docs/benchmarks/
"""
