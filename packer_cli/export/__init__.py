"""A packed data set in the formats that other trainers read.

::

    hbpack.json --> packed.py    the packs of a set: their sizes, gathering any of them in any order, and computing
                                 labels, positions and full rows of them
    ranks/...   --> options.py   what is asked for, and in which order the packs are used
                        |
                    job.py       what a format is told: rows, their order, their cuts into parts
                        |
                    stage.py     parts on threads, kept if whole when a killed run goes on
                        |
                    formats.py   the registry; the formats: binary.py, nemo_rl.py, parquet.py, saved.py, xtuner.py
                        |
                    saved.py     formats that load_from_disk opens: automodel, trl, llamafactory, ms-swift
                        |
                    records.py   records of the inputs, for a format of text, on disk while parts take them
"""
