"""Make our catalogue again, and its manifest: `python -m memtrials.benchmarks.continuity NEW_FOLDER [SEED]`."""

from __future__ import annotations

import sys
from pathlib import Path

from memtrials.benchmarks.continuity.scripts import CATALOGUE, MANIFEST, SEED, catalogue, manifest, scripts_path
from memtrials.embeddings.controllable import is_seed
from memtrials.errors import UserError


def main(arguments: list[str]) -> int:
    """Write a candidate into a folder of its own; the exit code."""
    try:
        if len(arguments) not in (1, 2):
            raise UserError("name the folder to make and, if you like, a seed")
        path, seed = Path(arguments[0]), arguments[1] if len(arguments) == 2 else str(SEED)
        if not seed.isdecimal() or not is_seed(int(seed)):
            raise UserError(f"seed is {seed}; it has to be an unsigned integer of 64 bits")
        made = {CATALOGUE: catalogue(scripts_path(), int(seed)), MANIFEST: manifest(scripts_path())}
        try:
            path.mkdir()
            for name, content in made.items():
                (path / name).write_bytes(content)
        except OSError as error:
            raise UserError(f"{path}: can't be written ({error.strerror}); name a new folder") from None
    except UserError as error:
        sys.stderr.write(f"memtrials: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
