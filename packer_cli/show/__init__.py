"""`hbpack show`: what a rank reads in an iteration, as text for people.

::

    view.py      step, iteration, pack or sample -> the row of a rank manifest; the record for --json
    contents.py  that row -> the pack: tokens, masks, where each sample came from
    decode.py    runs of tokens -> text, none of which is lost or torn
    lines.py     all of it in lines that a terminal cannot obey
"""

from packer_cli.show.decode import load_decoder
from packer_cli.show.lines import Style, view_lines
from packer_cli.show.view import look, view_record

__all__ = ["Style", "load_decoder", "look", "view_lines", "view_record"]
