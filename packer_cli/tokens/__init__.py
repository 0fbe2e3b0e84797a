"""Records to tokens: chat templates, encoding, loss masks, and the token store."""

from packer_cli.kernels import choose_cache

choose_cache()
