"""Where the vectors of scenarios are from, settled for all of them before the first is replayed."""

from __future__ import annotations

from collections.abc import Iterable

from memtrials.benchmarks.continuity.fixture import Scenario, embedded_texts
from memtrials.embeddings.controllable import Controllable
from memtrials.embeddings.frozen import Frozen, missing_text
from memtrials.errors import UserError


def bind(scenarios: Iterable[Scenario], store: Frozen | None) -> dict[str, Controllable | Frozen]:
    """The vectors of each scenario by its id: its own geometry's or those of the store.

    store: None where none is set, which only scenarios with a geometry can do without. Raises UserError, with every
    text that a store lacks.
    """
    bound: dict[str, Controllable | Frozen] = {}
    missing: dict[str, None] = {}
    for scenario in scenarios:
        name = scenario.fixture_id
        if scenario.geometry is not None:
            bound[name] = Controllable(scenario.geometry)
            continue
        if store is None:
            raise UserError(
                f"scenario {name!r} takes its vectors from a store, and none is set; make one with "
                "`memtrials embeddings generate` and name it with EMBED_FILE, or leave the scenario out"
            )
        missing.update(dict.fromkeys(text for text in embedded_texts(scenario) if text not in store))
        bound[name] = store
    if missing and store is not None:
        first, *others = (missing_text(text, store.store.model, store.path) for text in missing)
        raise UserError(first, others)
    return bound
