"""What a number was computed with: versions, and the commit of the checkout."""

from __future__ import annotations

import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from memtrials import __version__
from memtrials.settings import checkout


def environment() -> dict[str, Any]:
    """Versions of memtrials, Python and the packages that memtrials requires; commit and dirty of the checkout, null
    where there is none or git doesn't say."""
    return {"memtrials": __version__, "python": platform.python_version(), "packages": _packages(), **commit()}


def _packages() -> dict[str, str]:
    found = {}
    for requirement in requires("memtrials") or ():
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if name:
            try:
                found[name[0]] = version(name[0])
            except PackageNotFoundError:  # of an extra that isn't installed
                continue
    return dict(sorted(found.items()))


def commit() -> dict[str, Any]:
    """The checkout's commit, and whether its files differ from it."""
    root = checkout()
    head = _git(str(root), "rev-parse", "HEAD") if root else None
    changes = _git(str(root), "status", "--porcelain") if head else None
    return {"commit": head, "dirty": None if changes is None else bool(changes)}


def _git(root: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
