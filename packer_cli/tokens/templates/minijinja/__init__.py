"""Chat templates run by minijinja, several times as fast as jinja2.

::

    template -> jinja2's syntax tree -> source.py       statements
                                        expressions.py  expressions; calls.py: calls, filters and tests
                                        rules.py        what means the same in both engines
                                        lists.py        which expressions may be lists that the template makes
                        minijinja's source -> engine.py -> text and rounds; None leaves it to jinja2
                                              functions.py  filters and globals in Python

minijinja differs from jinja2 in many details. A template that may mean something else to it is refused on loading, or
fails on rendering; either way, jinja2 takes over.
"""
