"""Benchmarks: hbpack beside a peer or a physical floor, in one run, as ratios of medians.

`python -m tests.benchmark [names...]` (or `make bench`) runs them and writes their tables into docs/benchmarks.md;
pytest never collects them::

    __main__.py    the registry and the command line
    pack.py        `hbpack pack` from a cold start, beside the usual way
    pack_rows.py   the same for each record kind and family of tokenizers
    record_kinds.py, families.py    the corpora and the tokenizers of those rows
    usual_way.py   the usual way: datasets.map with the chat template, trl.pack_dataset, save_to_disk
    rival.py       runs it
    write.py       `hbpack write`, beside `cp -r` and `sync` of its output
    loader.py      PackedDataset, beside a plain copy of the tensors it returns, and other loaders
    loaders/       what `loader` measures in processes of their own
    plan.py        packing algorithms and build_plan, beside np.sort of the lengths
    peers/         packing algorithms, beside those that other trainers ship
    scale.py       the whole plan of 1 to 100 million samples: time and peak memory
    gpu.py         a profile's predictions beside real packs, on a GPU; of its own: `make bench-gpu`
    measure.py     wall time, CPU time and memory of a tree of processes; medians
    report.py      tables, and the marked parts of docs/benchmarks.md
"""
