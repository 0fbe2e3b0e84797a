"""`hbpack verify`: whether a packed set is complete, as it was written, and what its plan and its tokens say.

::

    verifier.py  runs all checks, and skips those that a damaged file makes pointless
    checks.py    the plan holds each sample once, within the rules of `plan.core.check`; the ranks read each pack once
                 in each epoch; the packs in the shards are the plan's, and their tokens the token store's
    report.py    what was found

The checksums of the files are compared by `shards.repair`, which also repairs what it finds.
"""

from packer_cli.verify.report import Report
from packer_cli.verify.verifier import Verifier, open_verifier

__all__ = ["Report", "Verifier", "open_verifier"]
