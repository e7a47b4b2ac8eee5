"""`SGLangServer`: one or many SGLang servers over HTTP, or a router in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp

from toolgym.rollout.engines.base import Generation, SamplingParams
from toolgym.rollout.engines.http import new_session
from toolgym.rollout.engines.sglang_control import ControlError, SGLangControl
from toolgym.rollout.engines.sglang_http import (
    NoAnswerError,
    Reply,
    ServerLostError,
    WorkerLostError,
    check_url,
    refusal,
    retry_delay,
)
from toolgym.rollout.engines.sglang_replicas import Replica, Replicas, ReplicaState
from toolgym.rollout.engines.sglang_requests import NOTHING, Flight
from toolgym.rollout.engines.sglang_wire import ServerInfo, error_text, merge_infos, read_generation, read_info
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError

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


class SGLangServer(SGLangControl):
    """Generates on SGLang servers, through their token-in-token-out `/generate`.

    Example:
        >>> engine = SGLangServer("http://a:30000", "http://b:30000")  # doctest: +SKIP
        >>> engine = SGLangServer("http://router:8000")  # doctest: +SKIP

    Several servers: requests that share an `affinity` stick to one server, for its prefix cache; new ones go to the
    one with the least requests in flight. One that has `balance_abs_threshold` requests more than the least loaded
    one, and more than `balance_rel_threshold` times as many, gives its trajectories away. Health checks take servers
    out and back in. A request whose server dies is sent to another from its exact ids: nothing of it was returned. A
    server that comes back with other weights than the rest (it was restarted) waits for the next update of weights.

    A router: its workers are asked from it, or given as `workers`; control calls and aborts go to them directly, for
    routers do not pass them on. Start it with `--policy manual --disable-retries`.

    Logprobs: SGLang reports them under the temperature-scaled distribution before top-p, top-k and min-p, and
    unscaled at temperature 0 (`layers/sampler.py`), which is this library's meaning. A server must not run with
    `SGLANG_RETURN_ORIGINAL_LOGPROB`, which makes all of them unscaled; no endpoint tells it.

    Seeds: a server honours them only when started with `--enable-deterministic-inference`; others ignore them. Such
    a server gives every request *without* a seed the same one (42), so this engine draws one for each. It cannot
    combine seeds with min-p (its sampler dies), which is refused here.

    Stopping: a server also stops at the model's own end-of-sequence ids when `stop_token_ids` is not empty.

    Requests that start while this engine has paused the servers wait here, not there: SGLang loses the abort of a
    request that waits for the end of a pause. An abort of a running request during a pause takes effect after it.

    One engine belongs to the event loop that called `start`.

    Args:
        urls: the servers, for example "http://127.0.0.1:30000", or one router.
        workers: the urls of a router's workers, where they cannot be asked from it.
        request_timeout: seconds for one generation, waiting on the server and pauses included.
        connect_timeout: seconds to connect.
        control_timeout: seconds for every other call.
        weights_timeout: seconds for an update of the weights.
        health_interval: seconds between two health checks of a server.
        health_timeout: seconds for one.
        unavailable_timeout: seconds that a request waits while no server is healthy.
        balance_abs_threshold: see above.
        balance_rel_threshold: see above.
        api_key: sent as a bearer token.
        vocab_size: number of token ids, for servers whose model folder is not on this machine: SGLang does not
            tell it.

    Raises:
        ConfigError: an argument is not usable.
    """

    def __init__(
        self,
        *urls: str,
        workers: Sequence[str] = (),
        request_timeout: float = 1800.0,
        connect_timeout: float = 5.0,
        control_timeout: float = 30.0,
        weights_timeout: float = 600.0,
        health_interval: float = 5.0,
        health_timeout: float = 10.0,
        unavailable_timeout: float = 30.0,
        balance_abs_threshold: int = 32,
        balance_rel_threshold: float = 1.5,
        api_key: str | None = None,
        vocab_size: int | None = None,
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
        timeouts = {
            "request_timeout": request_timeout,
            "connect_timeout": connect_timeout,
            "control_timeout": control_timeout,
            "weights_timeout": weights_timeout,
            "health_interval": health_interval,
            "health_timeout": health_timeout,
            "unavailable_timeout": unavailable_timeout,
        }
        for name, value in timeouts.items():
            if not value > 0:
                raise ConfigError(f"{name} must be a positive number of seconds, got {value!r}")
        if balance_abs_threshold < 0:
            raise ConfigError(f"balance_abs_threshold must be at least 0, got {balance_abs_threshold!r}")
        if not balance_rel_threshold >= 1:
            raise ConfigError(f"balance_rel_threshold must be at least 1, got {balance_rel_threshold!r}")
        if vocab_size is not None and vocab_size < 1:
            raise ConfigError(f"vocab_size must be at least 1, got {vocab_size!r}")
        super().__init__(
            request_timeout=request_timeout, control_timeout=control_timeout, weights_timeout=weights_timeout
        )
        self._connect_timeout = connect_timeout
        self._health_timeout = health_timeout
        self._balance: dict[str, Any] = {
            "health_interval": health_interval,
            "unavailable_timeout": unavailable_timeout,
            "balance_abs_threshold": balance_abs_threshold,
            "balance_rel_threshold": balance_rel_threshold,
        }
        self._api_key = api_key
        self._wanted_vocab_size = vocab_size
        self._session: aiohttp.ClientSession | None = None
        self._routes: Replicas | None = None
        self._workers: Replicas | None = None
        self._ranks: dict[str, int] = {}
        self._routing_keys: OrderedDict[str, str] = OrderedDict()

    @property
    def replicas(self) -> dict[str, ReplicaState]:
        """The servers (of a router: its workers) by url, and whether each takes requests."""
        return {one.url: one.state for one in self._control_targets.all}

    @property
    def requests_in_flight(self) -> dict[str, int]:
        """How many requests of this engine each server (or the router) has, by url."""
        return {one.url: one.requests for one in self._routes.all} if self._routes is not None else {}

    async def start(self) -> None:
        """Connect and ask every server what it serves. Starting twice is fine.

        Raises:
            EngineUnavailableError: one does not answer.
            EngineError: what answers is not an SGLang server, or refuses the key.
            ConfigError: the vocabulary's size is not known (see `vocab_size`), or the servers differ.
        """
        if self._closed:
            raise EngineError("the engine was closed; make a new one")
        if self._info is not None:
            return
        self._loop = asyncio.get_running_loop()
        session = new_session(self._api_key)
        try:
            entries = self._replicas_of(self.urls, session)
            workers = await self._workers_of(entries, session)
            infos = await asyncio.gather(*(self._introduce(one) for one in workers))
            info = merge_infos({one.url: info for one, info in zip(workers, infos, strict=True)})
        except BaseException:
            await session.close()
            raise
        self._session = session
        self._workers = Replicas(workers, check=self._check, readmit=self._readmit, **self._balance)
        self._workers.start()
        self._routes = self._workers
        if workers is not entries:
            self._routes = Replicas(entries, check=self._check_router, readmit=self._readmit_router, **self._balance)
            self._routes.start()
        self._weight_version = info.weight_version
        self._info = info

    async def _free(self) -> None:
        for group in {self._routes, self._workers}:
            if group is not None:
                await group.close()
        if self._session is not None:
            await self._session.close()

    # ---- getting to know the servers

    def _replicas_of(self, urls: Sequence[str], session: aiohttp.ClientSession) -> list[Replica]:
        replicas = [Replica(url, self._connect_timeout) for url in urls]
        for replica in replicas:
            replica.open(session)
        return replicas

    async def _workers_of(self, entries: list[Replica], session: aiohttp.ClientSession) -> list[Replica]:
        """Return the workers of a router, or the entries themselves where these are servers."""
        first = min(FIRST_ANSWER, self._control_timeout)
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

    async def _router_workers(self, entry: Replica, timeout: float) -> list[str] | None:
        if (await entry.call("GET", "/model_info", timeout=timeout)).status != 404:
            return None  # a server: routers do not pass this on
        reply = await entry.call("GET", "/workers", timeout=timeout)
        workers = reply.body.get("workers") if isinstance(reply.body, Mapping) else None
        if reply.status != 200 or not isinstance(workers, list):
            return None
        return [str(worker["url"]) for worker in workers if isinstance(worker, Mapping) and "url" in worker]

    async def _introduce(self, one: Replica) -> ServerInfo:
        first = min(FIRST_ANSWER, self._control_timeout)
        model = await self._ask(one, "/model_info", "/get_model_info", "model_path", first)
        server = await self._ask(one, "/server_info", "/get_server_info", "max_req_input_len", self._control_timeout)
        ranks = server.get("tp_size")
        self._ranks[one.url] = ranks if isinstance(ranks, int) else 1
        return await asyncio.to_thread(read_info, one.url, model, server, self._wanted_vocab_size)

    async def _ask(self, one: Replica, path: str, older_path: str, field: str, timeout: float) -> dict[str, Any]:
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

    async def _check(self, one: Replica) -> None:
        # A health check may generate a token, which a paused server does not.
        path = "/health" if self.paused is None else "/model_info"
        reply = await one.call("GET", path, timeout=self._health_timeout)
        if reply.status >= 500:
            raise refusal(one.url, path, reply.status, reply.body)

    async def _readmit(self, one: Replica) -> ReplicaState:
        model = await self._ask(one, "/model_info", "/get_model_info", "model_path", self._health_timeout)
        version = model.get("weight_version")
        if self._updates_begun != self._updates_ended or version != self._weight_version:
            one.why = (
                f"{one.url} came back with weights {version!r}, the others have {self._weight_version!r}: "
                "it takes requests again after the next update of the weights"
            )
            return ReplicaState.OUTDATED
        if self.paused is None:  # it may have missed the end of a pause
            await one.call("POST", "/continue_generation", {}, timeout=self._control_timeout)
        return ReplicaState.HEALTHY

    async def _check_router(self, one: Replica) -> None:
        reply = await one.call("GET", "/health", timeout=self._health_timeout)
        if reply.status >= 500:
            raise refusal(one.url, "/health", reply.status, reply.body)

    async def _readmit_router(self, one: Replica) -> ReplicaState:
        return ReplicaState.HEALTHY

    # ---- one request

    @property
    def _named(self) -> str:
        return ", ".join(self.urls)

    async def _deliver(
        self, flight: Flight, body: dict[str, Any], params: SamplingParams, affinity: str | None
    ) -> Generation:
        assert self._routes is not None
        routed = self._routes is not self._workers
        tokens = len(body["input_ids"]) + params.max_new_tokens
        refusals = losses = 0
        while True:
            await self._gate(flight, body)
            replica = await self._routes.take(affinity)
            headers = self._routing(affinity) if routed else None
            rid = flight.next_rid()
            flight.carrier = replica
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
                    return read_generation(reply.body, params)
                refusals += 1
                wait = retry_delay(reply, BACKOFF * 2 ** (refusals - 1))
                if wait is None or refusals == ATTEMPTS:
                    raise refusal(replica.url, "/generate", reply.status, reply.body)
                delay = wait
            flight.sent = False
            if flight.aborted:
                return NOTHING
            await asyncio.sleep(delay)

    async def _send(self, replica: Replica, body: dict[str, Any], headers: dict[str, str] | None) -> Reply:
        """Send a request and wait for its answer, as long as the replica is not given up."""
        gone = replica.gone
        # The caller's own deadline is the earlier one; aiohttp's is the belt to its braces.
        timeout = self._request_timeout + 1
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

    async def _abort_rid(self, flight: Flight) -> None:
        assert self._workers is not None
        # Behind a router nobody tells which worker has it; the others drop the unknown id.
        targets = [flight.carrier] if flight.carrier in self._workers.all else self._workers.reachable

        async def ask(one: Replica) -> None:
            with contextlib.suppress(ServerLostError):  # then so is the request
                await self._call_one(one, "/abort_request", {"rid": flight.rid}, self._control_timeout)

        await asyncio.gather(*map(ask, targets))

    # ---- control

    @property
    def _control_targets(self) -> Replicas:
        if self._workers is None:
            raise EngineError("the engine was not started: await engine.start() first")
        return self._workers

    async def _call_one(
        self, one: Replica, path: str, body: Mapping[str, Any] | None, timeout: float, method: str = "POST"
    ) -> Any:
        reply = await one.call(method, path, body, timeout=timeout)
        failed = isinstance(reply.body, Mapping) and reply.body.get("success") is False
        if reply.status != 200 or failed:
            raise refusal(one.url, path, reply.status, reply.body)
        return reply.body

    async def _command(
        self,
        path: str,
        body: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None,
        *,
        timeout: float | None = None,
        everyone: bool = False,
        method: str = "POST",
    ) -> dict[str, Any]:
        group = self._control_targets
        targets = [(n, one) for n, one in enumerate(group.all) if one.state is not ReplicaState.UNHEALTHY]
        if not targets or (everyone and len(targets) < len(group.all)):
            whys = "; ".join(one.why for one in group.all if one.state is ReplicaState.UNHEALTHY)
            raise EngineUnavailableError(f"{path} cannot reach the servers that it needs: {whys}")
        outcomes = await asyncio.gather(
            *(
                self._call_one(one, path, body(n) if callable(body) else body, timeout or self._control_timeout, method)
                for n, one in targets
            ),
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
                    group.lost(one, str(outcome))  # what it did nobody knows: it is asked before it is used again
                failed[one.url] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers[one.url] = outcome
        if lost and (everyone or not (answers or failed)):
            raise lost[0]
        if failed:
            raise ControlError.of(path, failed, list(answers))
        return answers

    async def _inquire(self, path: str) -> dict[str, Any]:
        self._require_open()
        return await self._command(path, None, method="GET")

    def _tensor_ranks(self) -> dict[str, int]:
        return self._ranks

    def _diverged(self, names: Sequence[str]) -> None:
        for one in self._control_targets.all:
            if one.url in names and one.state is ReplicaState.HEALTHY:
                one.state = ReplicaState.OUTDATED
                one.why = f"{one.url} did not take the last update of the weights"
