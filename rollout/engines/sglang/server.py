"""`SGLangServer`: the engine for SGLang servers over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from toolgym.rollout.engines.sglang.client import SGLangClient
from toolgym.rollout.engines.sglang.http_transport import HttpOptions, HttpTransport
from toolgym.tools.http.replicas import ReplicaState


class SGLangServer(SGLangClient):
    """Generates on SGLang servers, through their `/generate`, which takes and returns token ids. See docs/engines.md.
    Raises ConfigError if an argument is not usable.

    Example:
        >>> engine = SGLangServer("http://a:30000", "http://b:30000")  # connects when it is entered
        >>> engine = SGLangServer("http://router:8000")

    Args:
        urls: the servers, for example "http://127.0.0.1:30000", or one router.
        workers: the urls of a router's workers, if they cannot be asked from it.
        aligned: payloads that `Generation.aligned` is to hold, of `routed_experts`, `routing_weights` and
            `sampling_mask`.
        request_timeout: seconds for one generation, waiting on the server and pauses included.
        control_timeout: seconds for every other call.
        weights_timeout: seconds for an update of the weights.
        options: of connections, health checks and balance.
        api_key: sent as a bearer token.
        vocab_size: number of token ids, for servers whose model folder is not on this machine: SGLang does not tell it.
        routing_shape: layers, and experts per token, for `routed_experts` of such servers.
    """

    def __init__(
        self,
        *urls: str,
        workers: Sequence[str] = (),
        aligned: Sequence[str] = (),
        request_timeout: float = 1800.0,
        control_timeout: float = 30.0,
        weights_timeout: float = 600.0,
        api_key: str | None = None,
        vocab_size: int | None = None,
        routing_shape: tuple[int, int] | None = None,
        options: HttpOptions | None = None,
    ) -> None:
        self._http = HttpTransport(
            urls,
            workers,
            options or HttpOptions(),
            request_timeout=request_timeout,
            control_timeout=control_timeout,
            api_key=api_key,
            vocab_size=vocab_size,
            routing_shape=routing_shape,
        )
        super().__init__(
            self._http,
            aligned=aligned,
            request_timeout=request_timeout,
            control_timeout=control_timeout,
            weights_timeout=weights_timeout,
        )

    @property
    def urls(self) -> tuple[str, ...]:
        return self._http.urls

    @property
    def replicas(self) -> dict[str, ReplicaState]:
        """The servers (of a router: its workers) by url, and whether each takes requests."""
        return self._http.replicas

    @property
    def requests_in_flight(self) -> dict[str, int]:
        """Number of this engine's requests at each server (or the router), by url."""
        return self._http.requests_in_flight
