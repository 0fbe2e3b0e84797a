"""The loader beside others that read the same packs, and beside a plain copy. Each is measured in its own process,
`python -m tests.benchmark.loaders.NAME ...`, and prints a line of JSON::

    floor.py            a batch of each format, beside a copy of its finished tensors
    peers.py            whole epochs: hbpack; datasets with transformers' collator
    streaming_peer.py   the same for mosaicml streaming, which may need another Python
    first.py            time to the first batch of a set of a million packs
    memory.py           memory after a hundred thousand batches
"""
