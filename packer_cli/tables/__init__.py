"""Tables of results: each is made once, and shown by terminals, notebooks and the page of `hbpack report`.

::

    table.py                          the record
    stats.py, compare.py, groups.py   results -> tables
    text.py, html.py                  tables -> lines for a terminal, HTML for notebooks
"""
