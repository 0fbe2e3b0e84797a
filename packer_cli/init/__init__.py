"""`hbpack init`: look at data, or read another trainer's config, and write a config file.

::

    axolotl.py, llamafactory.py    another trainer's file -> a draft; carried.py: what both say
    look.py        a sample of each input: shapes, keys, lengths
    groups.py      length groups for these lengths
    text.py        the draft as commented YAML
"""

from packer_cli.init.axolotl import plugin_lines, read_axolotl
from packer_cli.init.llamafactory import read_llamafactory
from packer_cli.init.look import Look, Sampler
from packer_cli.init.text import Draft

__all__ = ["Draft", "Look", "Sampler", "plugin_lines", "read_axolotl", "read_llamafactory"]
