"""`hbpack show`: what a rank reads in an iteration, as text for people.

::

    view.py    step, iteration, pack or sample -> the row of a rank manifest, and the view of it
    packs.py   that row -> the pack: tokens, masks, where each sample came from; items, their branches and segments
    decode.py  runs of tokens -> text, none of which is lost or torn
    text.py    text in lines that a terminal cannot obey
    lines.py   all of it; an item drawn as a tree
"""
