"""`hbpack init`: look at data, or read another trainer's config, and write a config file.

::

    trainers.py    another trainer's config -> a draft
    look.py        a sample of each input: shapes, keys, lengths
    text.py        the draft as commented YAML, and length groups for these lengths
"""
