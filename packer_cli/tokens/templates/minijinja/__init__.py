"""Chat templates run by minijinja, several times as fast as jinja2.

::

    template -> jinja2's syntax tree -> source.py       statements, calls, filters and tests
                                        expressions.py  expressions
                                        rules.py        what means the same in both engines
                        minijinja's source -> engine.py -> text and rounds; None leaves it to jinja2

minijinja differs from jinja2 in many details. A template that may mean something else to it is refused on loading, or
fails on rendering; either way, jinja2 takes over.
"""
