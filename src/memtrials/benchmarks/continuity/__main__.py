"""Make our catalogue again: `python -m memtrials.benchmarks.continuity NEW_FILE [SEED]`."""

from __future__ import annotations

import sys
from pathlib import Path

from memtrials.benchmarks.continuity.scripts import SEED, catalogue, scripts_path
from memtrials.embeddings.controllable import is_seed
from memtrials.errors import UserError


def main(arguments: list[str]) -> int:
    """Write a candidate, never over a file that is there; the exit code."""
    try:
        if len(arguments) not in (1, 2):
            raise UserError("name the file to write and, if you like, a seed")
        path, seed = Path(arguments[0]), arguments[1] if len(arguments) == 2 else str(SEED)
        if not seed.isdecimal() or not is_seed(int(seed)):
            raise UserError(f"seed is {seed}; it has to be an unsigned integer of 64 bits")
        made = catalogue(scripts_path(), int(seed))
        try:
            with path.open("xb") as file:
                file.write(made)
        except OSError as error:
            raise UserError(f"{path}: can't be written ({error.strerror}); name a new file") from None
    except UserError as error:
        sys.stderr.write(f"memtrials: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
