"""The Python API, one file per function: options to config to stage to result. The command line calls the same.

::

    plan.py       plan lengths in memory, or a token store on disk -> Plan; iterations.py: what runs in its iterations
    pack.py       a corpus -> PackedSet
    stats.py, compare.py, simulate.py    study lengths, plans and packed sets
    arguments.py  Python's arguments -> the config models; options.py: their types, generated from these models

`packer_cli/__init__.py` lists the names that users import.
"""
