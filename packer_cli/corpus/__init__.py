"""Files to records: discovery, slices, readers by format, record shapes."""

from packer_cli.kernels import choose_cache

choose_cache()
