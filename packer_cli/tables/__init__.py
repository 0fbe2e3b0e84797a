"""Tables of results: each is made once, and shown by terminals, notebooks and the page of `hbpack report`.

::

    stats.py, compare.py, groups.py   results -> tables
    table.py                          the record; tables -> lines for a terminal, HTML for notebooks
"""
