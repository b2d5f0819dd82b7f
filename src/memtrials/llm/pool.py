"""The models of one run: one gate for each endpoint and model, one purse for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memtrials.errors import Cause
from memtrials.llm.engine import ChatModel, Endpoint
from memtrials.llm.limits import MOST, Gate
from memtrials.llm.money import Purse
from memtrials.llm.roles import RoleConfig


@dataclass(frozen=True)
class CallLimits:
    """What the command line allows. workers None: as many at once as the endpoint takes. Money in US dollars. anew: the
    caps are for this run alone, whatever the ledger spent before."""

    workers: int | None = None
    rpm: int | None = None
    tpm: int | None = None
    max_cost: float | None = None
    max_requests: int | None = None
    anew: bool = False

    @property
    def in_hand(self) -> int:
        """Pieces of work to begin at once: a quarter more than may be in flight, so that a place is taken again while
        what came back is being made durable. One worker does one thing after the other."""
        most = self.workers or MOST
        return most + most // 4


NO_LIMITS = CallLimits()


class ModelPool:
    """Opens each configuration's model once. purse: what all may spend, settled before the first is opened."""

    def __init__(self, limits: CallLimits, cause: Cause) -> None:
        self.limits = limits
        self.cause: Cause = cause
        self.purse = Purse()
        self._gates: dict[tuple[str | None, str], Gate] = {}
        self._models: dict[str, ChatModel] = {}

    def model(self, config: RoleConfig, endpoint: Endpoint) -> ChatModel:
        """The model of a configuration."""
        if config.id not in self._models:
            place = (endpoint.base_url, endpoint.model)
            limits = self.limits
            workers = 1 if config.is_local else limits.workers  # it answers one by one: waiting isn't its latency
            gate = self._gates.setdefault(place, Gate(workers, limits.rpm, limits.tpm))
            parameters: Mapping[str, Any] = config.settings["parameters"]
            self._models[config.id] = ChatModel(
                endpoint,
                parameters,
                self.cause,
                gate=gate,
                purse=self.purse,
                reasoning_limit=config.settings.get("reasoning_limit"),
            )
        return self._models[config.id]

    def stop(self) -> None:
        """Send nothing more; what is in flight goes on."""
        for gate in self._gates.values():
            gate.close()

    async def close(self) -> None:
        """Close connections."""
        for model in self._models.values():
            await model.close()
