"""What is said of a write that failed."""

from __future__ import annotations

import errno

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}  # on the disk, in the user's quota


def reason(error: OSError) -> str:
    """Why a write failed, in one line; where there is no room, with the next step."""
    said = error.strerror or str(error) or type(error).__name__
    return f"{said}: make room there, or choose another place" if error.errno in NO_ROOM else said
