"""Public data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memtrials.cli.options import FILE, emit, json_option, settings_now
from memtrials.cli.root import cli

if TYPE_CHECKING:
    pass


@cli.group()
def data() -> None:
    """Public data that benchmarks are built from: what there is, where it is, and getting it."""


@data.command("list")
@json_option
def list_data(as_json: bool) -> int:
    """Every dataset, its size and licence, and whether it is here. Asks nobody."""
    from memtrials import datasets
    from memtrials.report.terminal import print_datasets

    settings = settings_now()
    found = [datasets.place(name, settings) for name in datasets.catalogue()]
    if as_json:
        emit([datasets.as_json(place) for place in found])
    else:
        print_datasets(found)
    return 0


@data.command("where")
@click.argument("name")
def where_data(name: str) -> int:
    """The folder of a dataset that is here, and nothing else."""
    from memtrials import datasets

    print(datasets.folder_of(name, settings_now()))
    return 0


@data.command("get")
@click.argument("names", nargs=-1, required=True)
@click.option("--to", type=FILE, help="Into this folder [default: MEMTRIALS_DATA, else the platform's for user data].")
@click.option("--quiet", is_flag=True, help="No progress; licences and problems are still told.")
@json_option
def get_data(names: tuple[str, ...], to: Path | None, quiet: bool, as_json: bool) -> int:
    """Download datasets, each to a folder of its name, and check them. What was cut off goes on where it stopped.

    The licence is shown first and kept beside the data.
    """
    from memtrials import datasets
    from memtrials.progress import say

    settings = settings_now()
    places = [datasets.place(name, settings, to) for name in dict.fromkeys(names)]
    for place in places:
        datasets.check_by_hand(place)
    results, failed = [], False
    for place in places:
        result = datasets.as_json(place)
        try:
            result["downloaded"] = datasets.get(place, settings, quiet=quiet)
        except datasets.DownloadError as error:
            say(f"memtrials: {error}")
            result["error"], failed = str(error), True
        else:
            result |= datasets.as_json(place)
            if not as_json:
                done = f"{result['downloaded']:,} bytes downloaded" if result["downloaded"] else "nothing to do"
                print(f"{place.dataset.name}: {done}; in {place.folder}")
        results.append(result)
    if as_json:
        emit(results)
    return int(failed)


@data.command("verify")
@click.argument("names", nargs=-1)
@json_option
def verify_data(names: tuple[str, ...], as_json: bool) -> int:
    """Read datasets again, all that are here or those named, and compare them with their published hashes."""
    from memtrials import datasets

    settings = settings_now()
    places = [datasets.place(name, settings) for name in names or datasets.catalogue()]
    files = [file for place in places if names or place.here for file in datasets.verify(place, quiet=as_json)]
    if as_json:
        emit([asdict(file) | {"path": str(file.path)} for file in files])
    else:
        print("\n".join(file.problem or f"{file.path}: {file.result}" for file in files) or "no dataset is here")
    return int(any(file.problem for file in files))
