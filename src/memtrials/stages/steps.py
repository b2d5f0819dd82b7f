"""Sessions on their way to a system whose states aren't files of ours: written down before they go out and on arrival.

Such a system can't take a session back, and most can't say whether they have one. So a run that was killed is gone on
with after the last session that arrived. Where one went out and never arrived, the service is asked with its ticket;
has it given none, the state is given up, a new one begun, and what that sends again is said.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from memtrials.benchmarks.timeline import Session
from memtrials.errors import UserError, WorkFailedError
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.llm.limits import ClosedError
from memtrials.llm.money import BudgetError
from memtrials.progress import say
from memtrials.records import Header, Record, StepBody, Store, new_id, now
from memtrials.stages.common import Work
from memtrials.stages.turns import Turns
from memtrials.systems.base import RefusedError, Service, System

Place = tuple[int, str | None]
"""A session and the store it goes to."""


@dataclass
class Journey:
    """How far a state is. arrived: seconds of each session in each store, None where no run saw all of them. unsure:
    what went out and didn't arrive, with its ticket if there is one."""

    namespace: str
    user: str
    stores: tuple[Store, ...] = ()
    arrived: dict[Place, float | None] = field(default_factory=dict)
    unsure: dict[Place, str | None] = field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        """What all sessions took together; None where that isn't known."""
        times = list(self.arrived.values())
        return None if None in times else sum(t for t in times if t is not None)


def journeys(index: LedgerIndex, wanted: Collection[tuple[str, int]]) -> dict[tuple[str, int], Journey]:
    """The latest state of each of these pieces of work that isn't finished. One that has had an ingest, void or not, is
    finished: replaying after a `void` begins anew."""
    found: dict[tuple[str, int], Journey] = {}
    for header in index.ledger.headers:
        name = (header.key or "", header.repeat or 0)
        if name not in wanted:
            continue
        if header.kind == "ingest":
            found.pop(name, None)
        elif header.kind == "step" and index.counts(header.id):
            body = index.ledger.body(header, StepBody)
            journey = found.get(name)
            if journey is None or journey.namespace != body.namespace:
                journey = found[name] = Journey(body.namespace, body.user or body.namespace, body.stores)
            place = (body.session, body.store)
            journey.unsure.pop(place, None)
            if body.state == "sent":
                journey.unsure[place] = body.ticket
            elif body.state == "acknowledged":
                journey.arrived[place] = body.seconds
    return found


class Feeding:
    """One state being fed. turns: tells whether the stage is to stop."""

    def __init__(self, ledger: Ledger, work: Work, system: System, turns: Turns) -> None:
        self.ledger = ledger
        self.work = work
        self.system = system
        self.turns = turns
        self.service = system if isinstance(system, Service) else None

    def resume(self, journey: Journey | None, timeline: Sequence[Session]) -> Journey:
        """What is to be fed: an earlier run's state, where it can be gone on with, or a new one."""
        why = self._broken(journey) if journey else None
        if journey is None or why:
            if journey and why:
                say(
                    f"{self.work.parent.benchmark}, task {self.work.parent.task}: {why}; a new state is begun, and "
                    f"{len(journey.arrived)} writes that had arrived are made again"
                )
            return self._begin(timeline)
        return journey

    def _begin(self, timeline: Sequence[Session]) -> Journey:
        journey = Journey(secrets.token_hex(8), secrets.token_hex(8))
        if self.service is None:
            self.system.create(journey.namespace, journey.user)
        else:
            speakers = dict.fromkeys(t.speaker for session in timeline for t in session.turns if t.speaker)
            journey.stores = self.service.begin(journey.namespace, journey.user, list(speakers))
        return journey

    def _broken(self, journey: Journey) -> str | None:
        """Why an earlier run's state can't be gone on with; None when it can."""
        if self.service is None:
            return "a state of another run can't be taken up by this system"
        self.service.attach(journey.namespace, journey.stores)
        for (session, store_id), ticket in list(journey.unsure.items()):
            store = next((s for s in journey.stores if s.id == store_id), None)
            if ticket is None or store is None:
                return f"session {session} was sent, and nobody knows whether it arrived"
            try:
                self.service.settle(journey.namespace, store, ticket)
            except WorkFailedError as error:
                if error.class_ == "fatal":
                    raise
                return f"session {session} was sent and not taken in ({error})"
            self._step(journey, session, store, "acknowledged")
            journey.arrived[session, store_id] = None
            del journey.unsure[session, store_id]
        if not self.system.exists(journey.namespace):
            return "the service doesn't know the state any more"
        return None

    def go_on(self, journey: Journey, timeline: Sequence[Session]) -> None:
        """Send what hasn't arrived, in order. Raises what the system raises, and ClosedError when the stage stops."""
        stores: Sequence[Store | None] = journey.stores or (None,)
        for number, session in enumerate(timeline):
            for store in stores:
                if (number, store.id if store else None) not in journey.arrived:
                    self.turns.check_open()
                    self._send(journey, number, store, session)

    def _send(self, journey: Journey, number: int, store: Store | None, session: Session) -> None:
        began = time.perf_counter()
        self._step(journey, number, store, "sent")
        try:
            if self.service is None or store is None:
                self.system.add(journey.namespace, session)
                ticket = None
            else:
                ticket = self.service.send(journey.namespace, store, session)
        except (RefusedError, UserError, BudgetError, ClosedError):
            self._step(journey, number, store, "refused")
            raise
        if ticket is not None and self.service is not None and store is not None:
            self._step(journey, number, store, "sent", ticket=ticket)
            self.service.settle(journey.namespace, store, ticket)
        seconds = time.perf_counter() - began
        self._step(journey, number, store, "acknowledged", seconds=seconds)
        journey.arrived[number, store.id if store else None] = seconds

    def _step(
        self,
        journey: Journey,
        session: int,
        store: Store | None,
        state: Literal["sent", "acknowledged", "refused"],
        *,
        ticket: str | None = None,
        seconds: float | None = None,
    ) -> None:
        work, parent = self.work, self.work.parent
        header = Header(
            id=new_id(),
            kind="step",
            key=work.key,
            parents=(parent.id,),
            benchmark=parent.benchmark,
            task=parent.task,
            query=work.query,
            system=work.config,
            stage="replay",
            repeat=work.repeat,
            at=now(),
        )
        body = StepBody(
            namespace=journey.namespace,
            session=session,
            state=state,
            user=journey.user,
            store=store.id if store else None,
            stores=journey.stores,
            ticket=ticket,
            seconds=seconds,
        )
        self.ledger.append(Record(header, body))
