"""SGLang over HTTP: one or many servers, or a router in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolgym.rollout.engines.http import NotTakenError, error_text, refusal, repeat_request
from toolgym.rollout.engines.sglang.http import (
    HttpReply,
    NoAnswerError,
    ServerLostError,
    SGLangReplica,
    check_url,
    is_overloaded,
)
from toolgym.rollout.engines.sglang.messages import ServerInfo, merge_infos, read_info
from toolgym.rollout.engines.sglang.transport import Body, ClientState, InFlightRequest, ReplicaError
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError, check_seconds
from toolgym.tools.http.replicas import ReplicaPool, ReplicaState
from toolgym.tools.http.retries import AttemptError, retry_after
from toolgym.tools.http.session import HttpSession

MAX_ANSWER = 4 * 2**30
"""Most bytes of one answer: routed experts are some KiB a token."""
MOVES = 2
"""How often a request that was lost with its server is sent to another: it may be what kills them."""
ROUTER_MOVES = 10
"""The same behind a router, which sends to a dead worker for a while before it notices."""
FIRST_ANSWER = 10.0
"""Most seconds to wait for the first answer of all, which costs a server nothing."""
ROUTING_KEY = "x-smg-routing-key"
"""`sglang-router --policy manual` keeps a trajectory on one worker by this header."""
MAX_ROUTING_KEYS = 65_536


@dataclass(frozen=True)
class HttpOptions:
    """Options of the way to SGLang servers over HTTP. Times are seconds. Raises ConfigError for a value out of range.

    Attributes:
        connect_timeout: to connect.
        health_interval: between two health checks of a server.
        health_timeout: for one check.
        unavailable_timeout: that a request waits while no server is healthy.
        balance_abs_threshold: requests that a server may have more than the least loaded one before it gives its
            trajectories away,
        balance_rel_threshold: if it also has this many times as many.
    """

    connect_timeout: float = 5.0
    health_interval: float = 5.0
    health_timeout: float = 10.0
    unavailable_timeout: float = 30.0
    balance_abs_threshold: int = 32
    balance_rel_threshold: float = 1.5

    def __post_init__(self) -> None:
        check_seconds(
            connect_timeout=self.connect_timeout,
            health_interval=self.health_interval,
            health_timeout=self.health_timeout,
            unavailable_timeout=self.unavailable_timeout,
        )
        if self.balance_abs_threshold < 0:
            raise ConfigError(f"balance_abs_threshold must be at least 0, got {self.balance_abs_threshold!r}")
        if not self.balance_rel_threshold >= 1:
            raise ConfigError(f"balance_rel_threshold must be at least 1, got {self.balance_rel_threshold!r}")


class HttpTransport:
    """Carries requests and control calls to servers, or to a router and its workers. An `SGLangTransport`."""

    def __init__(
        self,
        urls: Sequence[str],
        workers: Sequence[str],
        options: HttpOptions,
        *,
        request_timeout: float,
        control_timeout: float,
        api_key: str | None,
        vocab_size: int | None,
        routing_shape: tuple[int, int] | None,
    ) -> None:
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
        if vocab_size is not None and vocab_size < 1:
            raise ConfigError(f"vocab_size must be at least 1, got {vocab_size!r}")
        if routing_shape is not None and not (len(routing_shape) == 2 and min(routing_shape) >= 1):
            raise ConfigError(f"routing_shape must be (layers, experts per token), got {routing_shape!r}")
        self._options = options
        self._request_timeout, self._control_timeout = request_timeout, control_timeout
        self._api_key, self._vocab_size, self._routing_shape = api_key, vocab_size, routing_shape
        self._state = ClientState()
        self._session: HttpSession | None = None
        self._routes: ReplicaPool[SGLangReplica] | None = None
        self._workers: ReplicaPool[SGLangReplica] | None = None
        self._routed = False
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
        return {replica.url: replica.state for replica in self._control_targets.all}

    @property
    def requests_in_flight(self) -> dict[str, int]:
        return {replica.url: replica.in_flight for replica in self._routes.all} if self._routes is not None else {}

    async def start(self, state: ClientState) -> ServerInfo:
        self._state = state
        session = HttpSession(self._api_key, 0, self._options.connect_timeout, MAX_ANSWER)
        try:
            entries = [SGLangReplica(url, session) for url in self.urls]
            workers = await self._workers_of(entries, session)
            infos = await asyncio.gather(*(self._handshake(worker) for worker in workers))
            info = merge_infos({worker.url: info for worker, info in zip(workers, infos, strict=True)})
        except BaseException:
            await session.close()
            raise
        self._session = session
        self._workers = self._pool(workers)
        self._routed = workers is not entries
        self._routes = self._pool(entries) if self._routed else self._workers
        return info

    def _pool(self, members: list[SGLangReplica]) -> ReplicaPool[SGLangReplica]:
        pool = ReplicaPool(
            members,
            self._probe,
            balance_abs_threshold=self._options.balance_abs_threshold,
            balance_rel_threshold=self._options.balance_rel_threshold,
        )
        pool.watch(self._options.health_interval)
        return pool

    async def close(self) -> None:
        for group in {self._routes, self._workers}:
            if group is not None:
                await group.close()
        if self._session is not None:
            await self._session.close()

    async def _workers_of(self, entries: list[SGLangReplica], session: HttpSession) -> list[SGLangReplica]:
        first = min(FIRST_ANSWER, self._control_timeout)
        if self._given_workers:
            await entries[0].call("GET", "/health", timeout=first)
            return [SGLangReplica(url, session) for url in self._given_workers]
        workers_of = await asyncio.gather(*(self._router_workers(entry, first) for entry in entries))
        routers = [(entry, urls) for entry, urls in zip(entries, workers_of, strict=True) if urls is not None]
        if not routers:
            return entries
        router, urls = routers[0]
        if len(entries) > 1:
            raise ConfigError(f"{router.url} is a router: give it alone, or the servers without it")
        if not urls:
            raise EngineUnavailableError(f"the router at {router.url} has no workers")
        return [SGLangReplica(check_url(url), session) for url in urls]

    async def _router_workers(self, entry: SGLangReplica, timeout: float) -> list[str] | None:
        if (await entry.call("GET", "/model_info", timeout=timeout)).status != 404:
            return None  # a server: routers do not pass this on
        reply = await entry.call("GET", "/workers", timeout=timeout)
        workers = reply.body.get("workers") if isinstance(reply.body, Mapping) else None
        if reply.status != 200 or not isinstance(workers, list):
            return None
        return [str(worker["url"]) for worker in workers if isinstance(worker, Mapping) and "url" in worker]

    async def _handshake(self, replica: SGLangReplica) -> ServerInfo:
        first = min(FIRST_ANSWER, self._control_timeout)
        model = await self._ask(replica, "/model_info", "/get_model_info", "model_path", first)
        server = await self._ask(
            replica, "/server_info", "/get_server_info", "max_req_input_len", self._control_timeout
        )
        ranks = server.get("tp_size")
        self._ranks[replica.url] = ranks if isinstance(ranks, int) else 1
        return await in_thread(read_info, replica.url, model, server, self._vocab_size, self._routing_shape)

    async def _ask(
        self, replica: SGLangReplica, path: str, older_path: str, field: str, timeout: float
    ) -> dict[str, Any]:
        for candidate in (path, older_path):
            reply = await replica.call("GET", candidate, timeout=timeout)
            if reply.status == 200 and isinstance(reply.body, dict) and field in reply.body:
                return reply.body
            if reply.status in (401, 403, 503):
                raise refusal(f"{replica.url}{candidate}", reply.status, reply.body)
        raise EngineError(
            f"{replica.url} answers, but not as an SGLang server does: {older_path} gave {reply.status} "
            f"{error_text(reply.body)!r}. Point the url at an SGLang server, or at an sglang-router"
        )

    async def _probe(self, replica: SGLangReplica) -> ReplicaState:
        assert self._workers is not None
        is_server = replica in self._workers.all
        # A health check may generate a token, which a paused server does not.
        path = "/model_info" if is_server and self._state.pause_mode is not None else "/health"
        try:
            reply = await replica.call("GET", path, timeout=self._options.health_timeout)
            if reply.status >= 500:
                raise refusal(f"{replica.url}{path}", reply.status, reply.body, of_content=False)
            return await self._readmit(replica) if is_server and not replica.healthy else ReplicaState.HEALTHY
        except ServerLostError:
            raise
        except EngineError as error:
            raise AttemptError(str(error), sent=True) from error

    async def _readmit(self, replica: SGLangReplica) -> ReplicaState:
        """Prepare a server that answers again, and return the state that it is to have."""
        if self._state.pause_mode is None:  # it may have missed the end of a pause
            await replica.call("POST", "/continue_generation", {}, timeout=self._control_timeout)
        # Asked last: an update that began before the answer came has missed this server.
        model = await self._ask(replica, "/model_info", "/get_model_info", "model_path", self._options.health_timeout)
        version = model.get("weight_version")
        if self._state.updates_begun == self._state.updates_ended and version == self._state.label:
            return ReplicaState.HEALTHY
        replica.trouble = (
            f"{replica.url} came back with weights {version!r}, the others have {self._state.label!r}: "
            "it takes requests again after the next update of the weights"
        )
        return ReplicaState.SUSPENDED

    async def dispatch(self, request: InFlightRequest, body: dict[str, Any], affinity: str | None) -> Any:
        """Send a request until a server answers it: again when one is overloaded (as `RETRIES` says), and, from its
        exact ids, when its server is lost (at most `MOVES` times)."""
        losses = 0

        async def attempt() -> Any:
            nonlocal losses
            await self._state.admit(request, body)
            try:
                return await self._attempt(request, body, affinity)
            except AttemptError as error:
                if isinstance(error, ServerLostError):
                    losses += error.sent
                if losses > (ROUTER_MOVES if self._routed else MOVES):
                    raise EngineError(
                        f"a request was lost with its server {losses} times, and is not sent again, for it may be what "
                        f"kills them; the last time: {error}"
                    ) from error
                request.sent = False
                if request.aborted:
                    return None
                raise

        return await repeat_request(attempt)

    async def _attempt(self, request: InFlightRequest, body: dict[str, Any], affinity: str | None) -> Any:
        assert self._routes is not None
        try:
            replica = await self._routes.wait(self._options.unavailable_timeout, affinity=affinity)
        except AttemptError as error:
            raise EngineUnavailableError(str(error)) from None
        rid = request.next_rid()
        request.carrier = replica
        with replica.working(len(body["input_ids"]) + int(body["sampling_params"]["max_new_tokens"])):
            reply = await self._send(replica, body | {"rid": rid}, self._routing(affinity) if self._routed else None)
        if reply.status == 200:
            return reply.body
        if self._routed and "x-smg-error-code" in reply.headers and reply.status >= 500:
            self._reroute(affinity)
            raise ServerLostError(f"the router lost its worker: {error_text(reply.body)}", sent=True)
        refused = refusal(f"{replica.url}/generate", reply.status, reply.body, name="SGLang")
        if is_overloaded(reply):
            raise NotTakenError(refused, retry_after(reply.headers.get("Retry-After")))
        raise refused

    async def _send(self, replica: SGLangReplica, body: dict[str, Any], headers: dict[str, str] | None) -> HttpReply:
        """Send a request and wait for its answer, as long as the replica has not left."""
        left = replica.left
        # The caller's deadline fires first; this one is a backstop.
        timeout = self._request_timeout + 1
        call = asyncio.ensure_future(replica.call("POST", "/generate", body, timeout=timeout, headers=headers))
        given_up = asyncio.ensure_future(left.wait())
        try:
            await asyncio.wait({call, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise ServerLostError(f"{replica.url} was given up: {replica.trouble}", sent=True)
            try:
                return call.result()
            except ServerLostError as error:
                replica.failed(str(error))
                raise
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
        """Give an affinity another key: a router keeps a key on its worker until it notices that the worker is dead."""
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

        async def ask(replica: SGLangReplica) -> None:
            with contextlib.suppress(ServerLostError):  # then so is the request
                await self._call_one(replica, "/abort_request", {"rid": request.rid}, self._control_timeout)

        await asyncio.gather(*map(ask, targets))

    @property
    def _control_targets(self) -> ReplicaPool[SGLangReplica]:
        if self._workers is None:
            raise EngineError("the engine was not started: await engine.start() first")
        return self._workers

    async def _call_one(
        self, replica: SGLangReplica, path: str, body: Mapping[str, Any] | None, timeout: float, method: str = "POST"
    ) -> Any:
        reply = await replica.call(method, path, body, timeout=timeout)
        failed = isinstance(reply.body, Mapping) and reply.body.get("success") is False
        if reply.status != 200 or failed:
            raise refusal(f"{replica.url}{path}", reply.status, reply.body, of_content=False)
        return reply.body

    async def command(self, path: str, body: Body, *, timeout: float, all_required: bool = False) -> dict[str, Any]:
        return await self._call_all("POST", path, body, timeout=timeout, all_required=all_required)

    async def query(self, path: str, *, timeout: float) -> dict[str, Any]:
        return await self._call_all("GET", path, None, timeout=timeout, all_required=False)

    async def _call_all(
        self, method: str, path: str, body: Body, *, timeout: float, all_required: bool
    ) -> dict[str, Any]:
        group = self._control_targets
        targets = [(number, replica) for number, replica in enumerate(group.all) if replica in group.reachable]
        if not targets or (all_required and len(targets) < len(group.all)):
            reasons = "; ".join(replica.trouble for replica in group.all if replica not in group.reachable)
            raise EngineUnavailableError(f"{path} cannot reach the servers that it needs: {reasons}")
        outcomes = await asyncio.gather(
            *(
                self._call_one(replica, path, body(number) if callable(body) else body, timeout, method)
                for number, replica in targets
            ),
            return_exceptions=True,
        )
        answers: dict[str, Any] = {}
        lost: list[ServerLostError] = []
        failed: dict[str, Exception] = {}
        for (_, replica), outcome in zip(targets, outcomes, strict=True):
            if isinstance(outcome, ServerLostError):
                replica.failed(str(outcome))
                lost.append(outcome)
            elif isinstance(outcome, Exception):
                if isinstance(outcome, NoAnswerError) and method == "POST" and len(group.all) > 1:
                    replica.failed(str(outcome))  # what it did is not known: `_readmit` asks before it is used again
                failed[replica.url] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers[replica.url] = outcome
        if lost and (all_required or not (answers or failed)):
            raise lost[0]
        if failed:
            raise ReplicaError(path, failed, list(answers))
        return answers

    def mark_outdated(self, names: Sequence[str]) -> None:
        for replica in self._control_targets.all:
            if replica.url in names and replica.healthy:
                replica.suspend(f"{replica.url} did not take the last update of the weights")
