"""Where the vectors of scenarios are from, settled for all of them before the first is replayed."""

from __future__ import annotations

from collections.abc import Iterable

from memtrials.benchmarks.continuity.fixture import Scenario, embedded_texts
from memtrials.embeddings.controllable import Controllable
from memtrials.embeddings.frozen import Frozen, missing_text
from memtrials.errors import UserError


def bind(scenarios: Iterable[Scenario], store: Frozen | None, width: int) -> dict[str, Controllable | Frozen]:
    """The vectors of each scenario by its id: its own geometry's, padded to width, or those of the store.

    store: None where none is set, which only scenarios with a geometry can do without. width: how many components a
    memory's vectors have. Raises UserError, with every text that a store lacks, and for vectors of another width.
    """
    bound: dict[str, Controllable | Frozen] = {}
    missing: dict[str, None] = {}
    for scenario in scenarios:
        name = scenario.fixture_id
        if scenario.geometry is not None:
            bound[name] = Controllable(scenario.geometry, width)
            continue
        if store is None:
            raise UserError(
                f"scenario {name!r} takes its vectors from a store, and none is set; name one, or leave it out"
            )
        if store.store.vector_size != width:
            raise UserError(f"{store.path}: its vectors have {store.store.vector_size} components, and {width} is set")
        missing.update(dict.fromkeys(text for text in embedded_texts(scenario) if text not in store))
        bound[name] = store
    if missing and store is not None:
        first, *others = (missing_text(text, store.store.model, store.path) for text in missing)
        raise UserError(first, others)
    return bound
