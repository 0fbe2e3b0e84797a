"""Chat templates run by minijinja, several times as fast as by jinja2.

::

    template -> jinja2's syntax tree -> source.py       statements
                                        expressions.py  expressions
                                        rules.py        what means the same in both engines
                                        lists.py        what may be a list of the template's own
                        minijinja's source -> engine.py -> text and rounds, or None: jinja2 does it
                                              functions.py  filters and globals in Python

minijinja differs from jinja2 in many corners. A template that may mean something else to it is refused when it is
loaded, or fails when it is rendered; either way jinja2 takes over.
"""
