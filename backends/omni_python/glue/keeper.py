"""The model with a pipeline's name on a host that has but a part of it: it keeps the processes that are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_python.config.topology import resolve_topology
from omni_python.control.restart_wishes import wish_restart
from omni_python.glue.context import ModelContext
from omni_python.glue.recovery import ModelReloader
from omni_python.glue.response import send_error
from omni_python.pipeline.keeper import Keeper
from omni_python.pipeline.place import keeper_place
from omni_python.proto.errors import OmniError, Unsupported


class KeeperModel:
    """Clients that call it are told where the orchestrator is."""

    def __init__(self, context: ModelContext) -> None:
        self._directory = context.directory
        config = context.config
        place = keeper_place(config, context.host)
        if place is None or not place.coordinator:
            raise OmniError(f"host {context.host!r} has the orchestrator: compile its model repository again")
        self._refusal = Unsupported(
            f"host {context.host!r} has a part of pipeline {config.resolved_name} alone; ask its orchestrator on host "
            f"{config.resolved_orchestrator_host!r} ({config.hosts[config.resolved_orchestrator_host].address})"
        )
        self._pipeline = config.resolved_name
        self._reloader = ModelReloader(
            resolve_topology(config),
            lambda process, replica, why: self._keeper.give_up(process, replica, why),
            self._wish_restart,
            config.limits,
        )
        self._keeper = Keeper(config.resolved_name, context.directory, place, self._reloader.recover)
        self._reloader.start()
        self._keeper.start()

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            send_error(request.get_response_sender(), self._refusal)

    def is_ready(self) -> bool:
        """It has nothing to serve, and is no reason to stop this host's stages from serving."""
        return True

    def _wish_restart(self, process: str, why: str) -> None:
        if not self._keeper.serves(process):
            wish_restart(self._directory, self._pipeline, why)

    def finalize(self) -> None:
        self._reloader.stop()
        self._keeper.stop()
