"""The versions of torch that the tests ran with (docs/versions.md), and what is said of others at `import ir`."""

from __future__ import annotations

import warnings

OLDEST, NEWEST = (2, 11), (2, 14)


def check_torch(version: str) -> None:
    """Hold the version of the torch that is installed to those that were tested.

    Warns:
        UserWarning: it is newer.

    Raises:
        ImportError: it is older.
    """
    major, minor, *_ = version.split(".")
    found = int(major), int(minor)
    oldest, newest = (".".join(map(str, v)) for v in (OLDEST, NEWEST))
    if found < OLDEST:
        raise ImportError(f"ir needs torch {oldest} or newer, {version} is installed: pip install 'torch>={oldest}'")
    if found > NEWEST:
        warnings.warn(
            f"torch {version} is newer than {newest}, the newest that ir was tested with: verify what you export",
            stacklevel=2,
        )
