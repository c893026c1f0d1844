"""The versions of other packages that are known; docs/versions.md, made from results of tests, says what ran."""

import logging
import os
import re
from functools import cache

from conceptloader.base.version import PAGES

# Package -> the oldest and the newest version that is known. setup.py's extras begin at the oldest, and end before the
# next major one.
TESTED = {
    "torch": ("2.6", "2.15"),
    "megatron-core": ("0.16.1", "0.20"),
    "nanotron": ("0.4", "0.4"),
    "lightning": ("2.5", "2.6"),
    "pytorch-lightning": ("2.5", "2.6"),
    "transformers": ("5.0", "5.23"),
    "accelerate": ("1.10", "1.15"),
    "trl": ("1.16", "1.16"),
    "torchtitan": ("0.3", "0.3"),
    "ai2-olmo-core": ("3.0", "3.0"),
}

logger = logging.getLogger(__name__)


@cache
def warn_untested(package: str, found: str = "") -> None:
    """Log one warning, on rank 0, if a trainer is newer than those that are known; a patch release isn't.

    found: its version, where a package may be a checkout; by default, that of the package as it is installed.
    """
    from importlib.metadata import PackageNotFoundError, version  # a third of the time that --help takes

    try:
        found = found or version(package)
    except PackageNotFoundError:
        return
    oldest, newest = TESTED[package]
    if _release(found) > _release(newest) and os.environ.get("RANK", "0") == "0":
        logger.warning(
            "%s %s is newer than the versions that this release of conceptloader knows, %s to %s. It may work; "
            "%s/versions.md says what was tested, and a newer release may know it",
            package, found, oldest, newest, PAGES,
        )  # fmt: skip


def _release(text: str) -> tuple[int, ...]:
    """Major and minor number."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])
