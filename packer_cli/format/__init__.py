"""The definition of everything on disk, once, for whatever writes or reads it.

::

    constants.py  names and versions
    schema.py     the columns of shards and rank manifests, names of files and folders; which set a file is of
    loss_spans.py  which tokens carry a loss
    checksums.py  of files and of JSON; names that stay in a set's folder
    shards.py     reads the rows and the record batches of a shard
    manifest.py   hbpack.json: its records, reading and writing it; the files of a set, here or behind a URL
    metrics.py    the figures of a plan and how automatic groups were chosen, in its file and in hbpack.json
    records.py    JSON to frozen dataclasses, strictly
    epochs.py     the order of epochs that were not written; the loader's state
    ranks.py      reads what a rank reads in an epoch
    arrays.py     between numpy and Arrow
"""
