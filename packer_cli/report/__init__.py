"""The page of `hbpack report`: one HTML file that opens offline.

::

    charts/             plans and lengths -> few numbers, which fill a specification, and a table that says the same
    advice.py           what is known of a set, and what to try next
    build.py, page.py   sections -> HTML
    template/           template, style and script of the page; Vega-Lite specifications of the charts; vendor/: Vega

A figure is never computed here that another command shows: the page takes it from there.
"""
