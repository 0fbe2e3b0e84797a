"""`hbpack verify`: whether a packed set is complete, as it was written, and what its plan and its tokens say.

::

    verifier.py  runs all checks, skips those that a damaged file makes pointless, and reports what was found
    checks.py    the plan holds each sample once, within the rules of `plan.core.check`; the ranks read each pack once
                 in each epoch; the packs in the shards are the plan's, and their tokens the token store's

The checksums of the files are compared by `shards.repair`, which also repairs what it finds.
"""

from packer_cli.verify.verifier import Report, Verifier, open_verifier

__all__ = ["Report", "Verifier", "open_verifier"]
