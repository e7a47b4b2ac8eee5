"""SGLang over HTTP: one or many servers, or a router in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp

from toolgym.rollout.engines.http import error_text
from toolgym.rollout.engines.sglang.http import (
    HttpReply,
    NoAnswerError,
    ServerLostError,
    WorkerLostError,
    check_url,
    refusal,
    retry_delay,
)
from toolgym.rollout.engines.sglang.messages import ServerInfo, merge_infos, read_info
from toolgym.rollout.engines.sglang.replicas import ReplicaState, SGLangReplica, SGLangReplicas
from toolgym.rollout.engines.sglang.transport import Body, ClientState, InFlightRequest, ReplicaError
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError
from toolgym.tools.http.session import new_session

ATTEMPTS = 4
"""How often a server that is overloaded is asked at most."""
BACKOFF = 0.25
"""Seconds before the first repetition; doubles each time."""
MOVES = 2
"""How often a request that was lost with its server is sent to another: it may be what kills them."""
ROUTER_MOVES = 10
"""The same behind a router, which sends to a dead worker for a while before it notices."""
FIRST_ANSWER = 10.0
"""Most seconds to wait for the first answer of all, which costs a server nothing."""
ROUTING_KEY = "x-smg-routing-key"
"""The header by which `sglang-router --policy manual` keeps a trajectory on one worker."""
MAX_ROUTING_KEYS = 65_536
"""Most trajectories remembered that a router had to place anew."""


class HttpSettings(NamedTuple):
    """How an `HttpTransport` speaks to its servers; `SGLangServer` documents each."""

    request_timeout: float
    connect_timeout: float
    control_timeout: float
    health_interval: float
    health_timeout: float
    unavailable_timeout: float
    balance_abs_threshold: int
    balance_rel_threshold: float
    api_key: str | None
    vocab_size: int | None
    routing_shape: tuple[int, int] | None


class HttpTransport:
    """Carries requests and control calls to servers, or to a router and its workers. An `SGLangTransport`.

    Args:
        urls: the servers, or one router.
        workers: the urls of a router's workers, where they cannot be asked from it.
        settings: see `HttpSettings`.

    Raises:
        ConfigError: an argument is not usable.
    """

    def __init__(self, urls: Sequence[str], workers: Sequence[str], settings: HttpSettings) -> None:
        if not urls:
            raise ConfigError("SGLangServer needs the url of at least one server")
        self.urls = tuple(check_url(url) for url in urls)
        self._given_workers = tuple(check_url(url) for url in workers)
        for group in (self.urls, self._given_workers):
            twice = {url for url in group if group.count(url) > 1}
            if twice:
                raise ConfigError(f"the url {min(twice)!r} is there twice")
        if workers and len(urls) > 1:
            raise ConfigError("workers are those of one router: give one url with them")
        self._settings = settings
        self._state = ClientState()
        self._session: aiohttp.ClientSession | None = None
        self._routes: SGLangReplicas | None = None
        self._workers: SGLangReplicas | None = None
        self._ranks: dict[str, int] = {}
        self._routing_keys: OrderedDict[str, str] = OrderedDict()

    @property
    def name(self) -> str:
        return ", ".join(self.urls)

    @property
    def ranks(self) -> Mapping[str, int]:
        return self._ranks

    @property
    def replicas(self) -> dict[str, ReplicaState]:
        """The servers (of a router: its workers) by url, and whether each takes requests."""
        return {one.url: one.state for one in self._control_targets.all}

    @property
    def requests_in_flight(self) -> dict[str, int]:
        """How many requests of this client each server (or the router) has, by url."""
        return {one.url: one.requests for one in self._routes.all} if self._routes is not None else {}

    async def start(self, state: ClientState) -> ServerInfo:
        """Connect, and ask every server what it serves; see `SGLangTransport.start`."""
        self._state = state
        session = new_session(self._settings.api_key)
        try:
            entries = self._replicas_of(self.urls, session)
            workers = await self._workers_of(entries, session)
            infos = await asyncio.gather(*(self._handshake(one) for one in workers))
            info = merge_infos({one.url: info for one, info in zip(workers, infos, strict=True)})
        except BaseException:
            await session.close()
            raise
        self._session = session
        self._workers = self._group(workers, routed=False)
        self._routes = self._workers if workers is entries else self._group(entries, routed=True)
        return info

    def _group(self, members: list[SGLangReplica], *, routed: bool) -> SGLangReplicas:
        settings = self._settings
        group = SGLangReplicas(
            members,
            check=self._check_router if routed else self._check,
            readmit=self._readmit_router if routed else self._readmit,
            health_interval=settings.health_interval,
            unavailable_timeout=settings.unavailable_timeout,
            balance_abs_threshold=settings.balance_abs_threshold,
            balance_rel_threshold=settings.balance_rel_threshold,
        )
        group.start()
        return group

    async def close(self) -> None:
        for group in {self._routes, self._workers}:
            if group is not None:
                await group.close()
        if self._session is not None:
            await self._session.close()

    # ---- getting to know the servers

    def _replicas_of(self, urls: Sequence[str], session: aiohttp.ClientSession) -> list[SGLangReplica]:
        replicas = [SGLangReplica(url, self._settings.connect_timeout) for url in urls]
        for replica in replicas:
            replica.open(session)
        return replicas

    async def _workers_of(self, entries: list[SGLangReplica], session: aiohttp.ClientSession) -> list[SGLangReplica]:
        """Return the workers of a router, or the entries themselves where these are servers."""
        first = min(FIRST_ANSWER, self._settings.control_timeout)
        if self._given_workers:
            await entries[0].call("GET", "/health", timeout=first)
            return self._replicas_of(self._given_workers, session)
        found = await asyncio.gather(*(self._router_workers(entry, first) for entry in entries))
        routers = [(entry, urls) for entry, urls in zip(entries, found, strict=True) if urls is not None]
        if not routers:
            return entries
        router, urls = routers[0]
        if len(entries) > 1:
            raise ConfigError(f"{router.url} is a router: give it alone, or the servers without it")
        if not urls:
            raise EngineUnavailableError(f"the router at {router.url} has no workers")
        return self._replicas_of([check_url(url) for url in urls], session)

    async def _router_workers(self, entry: SGLangReplica, timeout: float) -> list[str] | None:
        if (await entry.call("GET", "/model_info", timeout=timeout)).status != 404:
            return None  # a server: routers do not pass this on
        reply = await entry.call("GET", "/workers", timeout=timeout)
        workers = reply.body.get("workers") if isinstance(reply.body, Mapping) else None
        if reply.status != 200 or not isinstance(workers, list):
            return None
        return [str(worker["url"]) for worker in workers if isinstance(worker, Mapping) and "url" in worker]

    async def _handshake(self, one: SGLangReplica) -> ServerInfo:
        first = min(FIRST_ANSWER, self._settings.control_timeout)
        model = await self._ask(one, "/model_info", "/get_model_info", "model_path", first)
        server = await self._ask(
            one, "/server_info", "/get_server_info", "max_req_input_len", self._settings.control_timeout
        )
        ranks = server.get("tp_size")
        self._ranks[one.url] = ranks if isinstance(ranks, int) else 1
        return await asyncio.to_thread(
            read_info, one.url, model, server, self._settings.vocab_size, self._settings.routing_shape
        )

    async def _ask(self, one: SGLangReplica, path: str, older_path: str, field: str, timeout: float) -> dict[str, Any]:
        for candidate in (path, older_path):
            reply = await one.call("GET", candidate, timeout=timeout)
            if reply.status == 200 and isinstance(reply.body, dict) and field in reply.body:
                return reply.body
            if reply.status in (401, 403, 503):
                raise refusal(one.url, candidate, reply.status, reply.body)
        raise EngineError(
            f"{one.url} answers, but not as an SGLang server does: {older_path} gave {reply.status} "
            f"{error_text(reply.body)!r}. Point the url at an SGLang server, or at an sglang-router"
        )

    # ---- health

    async def _check(self, one: SGLangReplica) -> None:
        # A health check may generate a token, which a paused server does not.
        path = "/health" if self._state.pause_mode is None else "/model_info"
        reply = await one.call("GET", path, timeout=self._settings.health_timeout)
        if reply.status >= 500:
            raise refusal(one.url, path, reply.status, reply.body)

    async def _readmit(self, one: SGLangReplica) -> ReplicaState:
        model = await self._ask(one, "/model_info", "/get_model_info", "model_path", self._settings.health_timeout)
        version = model.get("weight_version")
        if self._state.updates_begun != self._state.updates_ended or version != self._state.weight_version:
            one.why = (
                f"{one.url} came back with weights {version!r}, the others have {self._state.weight_version!r}: "
                "it takes requests again after the next update of the weights"
            )
            return ReplicaState.OUTDATED
        if self._state.pause_mode is None:  # it may have missed the end of a pause
            await one.call("POST", "/continue_generation", {}, timeout=self._settings.control_timeout)
        return ReplicaState.HEALTHY

    async def _check_router(self, one: SGLangReplica) -> None:
        reply = await one.call("GET", "/health", timeout=self._settings.health_timeout)
        if reply.status >= 500:
            raise refusal(one.url, "/health", reply.status, reply.body)

    async def _readmit_router(self, one: SGLangReplica) -> ReplicaState:
        return ReplicaState.HEALTHY

    # ---- one request

    async def dispatch(self, request: InFlightRequest, body: dict[str, Any], affinity: str | None) -> Any:
        """Send a request until a server answers it; see `SGLangTransport.dispatch`.

        It is sent again when a server is overloaded (at most `ATTEMPTS` times), and, from its exact ids, when its
        server is lost (at most `MOVES` times).
        """
        assert self._routes is not None
        routed = self._routes is not self._workers
        tokens = len(body["input_ids"]) + int(body["sampling_params"]["max_new_tokens"])
        refusals = losses = 0
        while True:
            await self._state.admit(request, body)
            replica = await self._routes.take(affinity)
            headers = self._routing(affinity) if routed else None
            rid = request.next_rid()
            request.carrier = replica
            try:
                with replica.carrying(tokens):
                    reply = await self._send(replica, body | {"rid": rid}, headers)
                if routed and "x-smg-error-code" in reply.headers and reply.status >= 500:
                    raise WorkerLostError(f"the router lost its worker: {error_text(reply.body)}", sent=True)
            except ServerLostError as error:
                delay = 0.0
                if isinstance(error, WorkerLostError):
                    self._reroute(affinity)
                    delay = BACKOFF
                else:
                    self._routes.lost(replica, str(error))
                losses += error.sent
                if losses > (ROUTER_MOVES if routed else MOVES):
                    raise EngineError(
                        f"a request was lost with its server {losses} times, and is not sent again, for it may be what "
                        f"kills them; the last time: {error}"
                    ) from error
            else:
                if reply.status == 200:
                    return reply.body
                refusals += 1
                wait = retry_delay(reply, BACKOFF * 2 ** (refusals - 1))
                if wait is None or refusals == ATTEMPTS:
                    raise refusal(replica.url, "/generate", reply.status, reply.body)
                delay = wait
            request.sent = False
            if request.aborted:
                return None
            await asyncio.sleep(delay)

    async def _send(self, replica: SGLangReplica, body: dict[str, Any], headers: dict[str, str] | None) -> HttpReply:
        """Send a request and wait for its answer, as long as the replica is not given up."""
        gone = replica.gone
        # The caller's deadline fires first; aiohttp's timeout is a backstop.
        timeout = self._settings.request_timeout + 1
        call = asyncio.ensure_future(replica.call("POST", "/generate", body, timeout=timeout, headers=headers))
        given_up = asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait({call, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
            raise ServerLostError(f"{replica.url} was given up: {replica.why}", sent=True)
        finally:
            for task in (call, given_up):
                task.cancel()
            await asyncio.wait({call, given_up})
            if not call.cancelled():
                call.exception()  # seen: asyncio must not log it as never retrieved

    def _routing(self, affinity: str | None) -> dict[str, str]:
        if affinity is None:
            return {}
        return {ROUTING_KEY: self._routing_keys.get(affinity, affinity)}

    def _reroute(self, affinity: str | None) -> None:
        """A router pins a key to its worker until it notices that this is dead; another key goes elsewhere."""
        if affinity is None:
            return
        self._routing_keys[affinity] = f"{affinity} {uuid.uuid4().hex}"
        self._routing_keys.move_to_end(affinity)
        if len(self._routing_keys) > MAX_ROUTING_KEYS:
            self._routing_keys.popitem(last=False)

    async def abort(self, request: InFlightRequest) -> None:
        assert self._workers is not None
        # Behind a router it is not known which worker has it; the others drop the unknown id.
        targets = [request.carrier] if request.carrier in self._workers.all else self._workers.reachable

        async def ask(one: SGLangReplica) -> None:
            with contextlib.suppress(ServerLostError):  # then so is the request
                await self._call_one(one, "/abort_request", {"rid": request.rid}, self._settings.control_timeout)

        await asyncio.gather(*map(ask, targets))

    # ---- control

    @property
    def _control_targets(self) -> SGLangReplicas:
        if self._workers is None:
            raise EngineError("the engine was not started: await engine.start() first")
        return self._workers

    async def _call_one(
        self, one: SGLangReplica, path: str, body: Mapping[str, Any] | None, timeout: float, method: str = "POST"
    ) -> Any:
        reply = await one.call(method, path, body, timeout=timeout)
        failed = isinstance(reply.body, Mapping) and reply.body.get("success") is False
        if reply.status != 200 or failed:
            raise refusal(one.url, path, reply.status, reply.body)
        return reply.body

    async def command(self, path: str, body: Body, *, timeout: float, all_required: bool = False) -> dict[str, Any]:
        return await self._call_all("POST", path, body, timeout=timeout, all_required=all_required)

    async def query(self, path: str, *, timeout: float) -> dict[str, Any]:
        return await self._call_all("GET", path, None, timeout=timeout, all_required=False)

    async def _call_all(
        self, method: str, path: str, body: Body, *, timeout: float, all_required: bool
    ) -> dict[str, Any]:
        group = self._control_targets
        targets = [(n, one) for n, one in enumerate(group.all) if one.state is not ReplicaState.UNHEALTHY]
        if not targets or (all_required and len(targets) < len(group.all)):
            reasons = "; ".join(one.why for one in group.all if one.state is ReplicaState.UNHEALTHY)
            raise EngineUnavailableError(f"{path} cannot reach the servers that it needs: {reasons}")
        outcomes = await asyncio.gather(
            *(self._call_one(one, path, body(n) if callable(body) else body, timeout, method) for n, one in targets),
            return_exceptions=True,
        )
        answers: dict[str, Any] = {}
        lost: list[ServerLostError] = []
        failed: dict[str, Exception] = {}
        for (_, one), outcome in zip(targets, outcomes, strict=True):
            if isinstance(outcome, ServerLostError):
                group.lost(one, str(outcome))
                lost.append(outcome)
            elif isinstance(outcome, Exception):
                if isinstance(outcome, NoAnswerError) and len(group.all) > 1:
                    group.lost(one, str(outcome))  # what it did is not known: `_readmit` asks before it is used again
                failed[one.url] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers[one.url] = outcome
        if lost and (all_required or not (answers or failed)):
            raise lost[0]
        if failed:
            raise ReplicaError.of(path, failed, list(answers))
        return answers

    def mark_outdated(self, names: Sequence[str]) -> None:
        for one in self._control_targets.all:
            if one.url in names and one.state is ReplicaState.HEALTHY:
                one.state = ReplicaState.OUTDATED
                one.why = f"{one.url} did not take the last update of the weights"
