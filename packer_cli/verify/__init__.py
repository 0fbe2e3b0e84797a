"""`hbpack verify`: whether a packed set is as it was written, whole, and what its plan and its tokens say.

::

    files.py     every file has its checksum, and is this set's
    plan.py      the plan holds each sample once, within the rules of `plan.check`
    ranks.py     the ranks read what the plan says: each pack once over all of them, in each epoch
    packs.py     the packs in the shards are the plan's, and their tokens the token store's

Each finds what is wrong by itself; `Verifier` runs them, and leaves out what a damaged file makes pointless.
"""

from packer_cli.verify.report import Report
from packer_cli.verify.verifier import Verifier, open_verifier

__all__ = ["Report", "Verifier", "open_verifier"]
