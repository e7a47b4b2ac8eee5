"""Counts of a worker of the sandbox server."""

from __future__ import annotations

from prometheus_client import Counter

from toolgym.tools.serving.metrics import ServerMetrics

PREFIX = "toolgym_sandbox"


class SandboxMetrics(ServerMetrics):
    """The counts of every server, and the ends of programs and cells."""

    def __init__(self) -> None:
        super().__init__(PREFIX)
        self._outcomes = Counter(
            f"{PREFIX}_executions",
            "Programs and cells that ended, by endpoint and how.",
            ["endpoint", "status"],
            registry=self.registry,
        )

    def ran(self, endpoint: str, outcome: str) -> None:
        self._outcomes.labels(endpoint, outcome).inc()
