"""Several servers behind one `SGLangServer`: who gets a request, who leaves, and who comes back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from tests.actors import until
from toolgym.rollout.engines import Generation, HttpOptions, PauseMode, SamplingParams, SGLangServer
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError
from toolgym.tools.http.replicas import BAD_CHECKS, ReplicaState

TWO = SamplingParams(max_new_tokens=2)


class Fake:
    """A server that answers every request with two tokens; it can be held up, stopped, and started again."""

    def __init__(self, version: str = "default", vocab_size: int = 320) -> None:
        self.version = version
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.control: list[str] = []
        self.refuse = ""
        self.go = asyncio.Event()
        self.go.set()
        self.answer: Callable[[dict[str, Any]], web.Response] | None = None
        self.healthy = True
        self.checks = 0
        self.port = 0
        self._leaves = False
        self._place: socket.socket | None = None
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        if self._place is None:  # never listens, and keeps the port for this server while it is away
            self._place = socket.socket()
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._place.bind(("127.0.0.1", 0))
            self.port = self._place.getsockname()[1]
        app = web.Application()
        app.router.add_get("/model_info", self._model_info)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_get("/health", self._health)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/{path}", self._control)
        self._runner, self._leaves = web.AppRunner(app, shutdown_timeout=0.05), False
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def stop(self) -> None:
        """Go away, as a process that is killed: every connection breaks."""
        if self._runner is not None:
            runner, self._runner, self._leaves = self._runner, None, True
            assert runner.server is not None
            for connection in list(runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            await asyncio.sleep(0.02)  # the loop closes their sockets
            await runner.cleanup()

    async def end(self) -> None:
        """Stop for good."""
        self.go.set()
        await self.stop()
        if self._place is not None:
            self._place.close()

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "m", "tokenizer_path": "m", "weight_version": self.version})

    async def _server_info(self, request: web.Request) -> web.Response:
        return web.json_response({"max_req_input_len": 100, "version": "0.5.23", "tp_size": 1})

    async def _health(self, request: web.Request) -> web.Response:
        self.checks += 1
        if self._leaves:  # it is going away: who still got a connection gets no answer
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=200 if self.healthy else 503)

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen.append(body)
        self.keys.append(request.headers.get("x-smg-routing-key"))
        await self.go.wait()
        if self.answer is not None:
            return self.answer(body)
        return web.json_response(
            {
                "output_ids": [5, 6],
                "meta_info": {
                    "finish_reason": {"type": "length", "length": 2},
                    "output_token_logprobs": [[-0.5, 5, None], [-1.5, 6, None]],
                    "weight_version": self.version,
                },
            }
        )

    async def _control(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        self.control.append(path)
        if path == self.refuse:
            return web.json_response({"success": False, "message": "no luck"}, status=400)
        if path == "update_weight_version":
            self.version = (await request.json())["new_version"]
        return web.json_response({"success": True})


@contextlib.asynccontextmanager
async def fakes(*servers: Fake) -> AsyncIterator[None]:
    try:
        for server in servers:
            await server.start()
        yield
    finally:
        for server in servers:
            await server.end()


def client(*servers: Fake, **changes: Any) -> SGLangServer:
    names = {field.name for field in dataclasses.fields(HttpOptions)}
    options = {"health_interval": 0.1, "health_timeout": 30.0, "unavailable_timeout": 60.0}
    options |= {name: value for name, value in changes.items() if name in names}
    others = {name: value for name, value in changes.items() if name not in names}
    urls = (server.url for server in servers)
    return SGLangServer(*urls, vocab_size=320, options=HttpOptions(**options), **others)


async def ask(engine: SGLangServer, name: str, affinity: str | None = None, ids: Any = (1, 2, 3)) -> Generation:
    return await engine.generate(list(ids), TWO, request_id=name, affinity=affinity)


# ---- who gets a request


async def test_a_trajectory_sticks_and_new_ones_spread() -> None:
    left, right = Fake(), Fake()
    async with fakes(left, right), client(left, right) as engine:
        for turn in range(3):
            for trajectory in range(8):
                await ask(engine, f"{trajectory}-{turn}", f"t{trajectory}", [trajectory, turn])
        homes = [{body["input_ids"][0] for body in server.seen} for server in (left, right)]
    assert homes[0].isdisjoint(homes[1])
    assert [len(home) for home in homes] == [4, 4]


async def test_requests_without_affinity_go_to_the_least_loaded() -> None:
    left, right = Fake(), Fake()
    async with fakes(left, right), client(left, right) as engine:
        left.go.clear()
        right.go.clear()
        tasks = [asyncio.create_task(ask(engine, str(n))) for n in range(6)]
        await until(lambda: len(left.seen) + len(right.seen) == 6)
        assert len(left.seen) == len(right.seen) == 3
        left.go.set()
        right.go.set()
        await asyncio.gather(*tasks)


async def test_an_overloaded_server_gives_trajectories_away() -> None:
    left, right = Fake(), Fake()
    async with fakes(left, right), client(left, right, balance_abs_threshold=2, balance_rel_threshold=1.5) as engine:
        await ask(engine, "first", "t")
        home, other = (left, right) if left.seen else (right, left)
        home.go.clear()
        tasks = [asyncio.create_task(ask(engine, f"busy{n}", "t")) for n in range(3)]
        await until(lambda: len(home.seen) == 4)
        await ask(engine, "away", "t")
        assert len(other.seen) == 1
        home.go.set()
        await asyncio.gather(*tasks)


# ---- who leaves


async def test_a_request_continues_elsewhere_when_its_server_dies() -> None:
    left, right = Fake(), Fake()
    async with fakes(left, right), client(left, right) as engine:
        await ask(engine, "first", "t", [7, 8])
        home, other = (left, right) if left.seen else (right, left)
        home.go.clear()
        task = asyncio.create_task(ask(engine, "second", "t", [7, 8, 5, 6, 9]))
        await until(lambda: len(home.seen) == 2)
        await home.stop()
        assert (await asyncio.wait_for(task, 60)).token_ids == (5, 6)
        lost, again = home.seen[1], other.seen[0]
        assert lost["input_ids"] == again["input_ids"] == [7, 8, 5, 6, 9]
        assert lost["rid"] != again["rid"]
        await until(lambda: engine.replicas == {home.url: ReplicaState.UNHEALTHY, other.url: ReplicaState.HEALTHY})
        await ask(engine, "third", "t", [7])
        assert other.seen[-1]["input_ids"] == [7]


async def test_a_server_that_hangs_is_given_up_by_its_health() -> None:
    left, right = Fake(), Fake()
    async with fakes(left, right), client(left, right) as engine:
        left.go.clear()
        right.go.clear()
        task = asyncio.create_task(ask(engine, "a"))
        await until(lambda: len(left.seen) + len(right.seen) == 1)
        home, other = (left, right) if left.seen else (right, left)
        other.go.set()
        home.healthy = False
        assert (await asyncio.wait_for(task, 60)).token_ids == (5, 6)
        assert engine.replicas[home.url] is ReplicaState.UNHEALTHY
        home.healthy = True
        await until(lambda: engine.replicas[home.url] is ReplicaState.HEALTHY)


async def test_the_last_server_is_not_given_up_for_being_slow() -> None:
    left = Fake()
    async with fakes(left), client(left, health_interval=0.02) as engine:
        left.go.clear()
        left.healthy = False
        task = asyncio.create_task(ask(engine, "a"))
        await until(lambda: left.checks > 4 * BAD_CHECKS)
        assert engine.replicas[left.url] is ReplicaState.HEALTHY
        left.go.set()
        assert (await task).token_ids == (5, 6)
        assert len(left.seen) == 1


async def test_a_request_that_kills_its_servers_is_not_sent_for_ever() -> None:
    class Poisoned(Fake):
        poisoned = 0

        async def _generate(self, request: web.Request) -> web.Response:
            if (await request.json())["input_ids"] == [13]:
                self.poisoned += 1
                assert request.transport is not None
                request.transport.abort()
            return await super()._generate(request)

    servers = [Poisoned() for _ in range(5)]
    async with fakes(*servers), client(*servers) as engine:
        with pytest.raises(EngineError, match="may be what kills them"):
            await ask(engine, "a", None, [13])
        assert sum(server.poisoned for server in servers) == 3
        assert (await ask(engine, "b")).token_ids == (5, 6)


async def test_when_all_are_dead_a_request_waits_as_long_as_it_says() -> None:
    left, right = Fake(), Fake()
    async with fakes(left, right), client(left, right, unavailable_timeout=0.6) as engine:
        await left.stop()
        await right.stop()
        began = time.monotonic()
        with pytest.raises(EngineUnavailableError, match=r"within 0\.6 seconds.*nothing answers"):
            await ask(engine, "a")
        assert time.monotonic() - began >= 0.6
        with pytest.raises(EngineUnavailableError):
            await engine.flush_cache()


async def test_a_cancelled_wait_for_a_server_leaves_nothing() -> None:
    left = Fake()
    async with fakes(left), client(left) as engine:
        await left.stop()
        task = asyncio.create_task(ask(engine, "a"))
        await until(lambda: engine.replicas[left.url] is ReplicaState.UNHEALTHY)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await left.start()
        assert (await ask(engine, "a")).token_ids == (5, 6)


# ---- who comes back


async def test_a_server_comes_back_and_who_waits_is_served() -> None:
    left = Fake()
    async with fakes(left), client(left) as engine:
        await left.stop()
        task = asyncio.create_task(ask(engine, "a"))
        await asyncio.sleep(0.3)
        assert not task.done()
        await left.start()
        assert (await asyncio.wait_for(task, 60)).token_ids == (5, 6)
        assert "continue_generation" in left.control  # it may have missed the end of a pause


async def test_a_server_with_other_weights_waits_for_the_next_update() -> None:
    left, right = Fake(), Fake()
    async with fakes(left, right), client(left, right) as engine:
        await engine.update_weight_version("1")
        await right.stop()
        await until(lambda: engine.replicas[right.url] is ReplicaState.UNHEALTHY)
        right.version = "default"  # it was started again
        await right.start()
        await until(lambda: engine.replicas[right.url] is ReplicaState.SUSPENDED)
        for number in range(4):
            assert (await ask(engine, str(number))).weight_versions == ("1", "1")
        assert not right.seen
        await engine.update_weight_version("2")
        assert right.version == "2"
        await until(lambda: engine.replicas[right.url] is ReplicaState.HEALTHY)
        await asyncio.gather(*(ask(engine, str(number)) for number in range(4)))
        assert right.seen


async def test_a_server_that_comes_back_during_an_update_has_missed_it() -> None:
    class Slow(Fake):
        held = 0

        async def _control(self, request: web.Request) -> web.Response:
            self.held += 1
            await self.go.wait()
            return await super()._control(request)

    left, right = Fake("1"), Slow("1")
    async with fakes(left, right), client(left, right) as engine:
        await right.stop()
        await until(lambda: engine.replicas[right.url] is ReplicaState.UNHEALTHY)
        right.go.clear()
        await right.start()
        await until(lambda: right.held == 1)  # it is about to come back, with the weights that the others have
        await engine.update_weight_version("2")
        right.go.set()
        await until(lambda: engine.replicas[right.url] is not ReplicaState.UNHEALTHY)
        assert engine.replicas[right.url] is ReplicaState.SUSPENDED
        for number in range(4):
            assert (await ask(engine, str(number))).weight_versions == ("2", "2")


async def test_a_server_that_misses_an_update_is_named_and_left_out() -> None:
    left, right = Fake(), Fake()
    async with fakes(left, right), client(left, right) as engine:
        right.refuse = "update_weights_from_disk"
        with pytest.raises(EngineError, match=rf"failed on 1 of 2 servers: {right.url}.*no luck"):
            await engine.update_weights_from_disk("m2", version="2")
        left.version = "2"
        assert engine.weight_version == "2"
        assert engine.replicas == {left.url: ReplicaState.HEALTHY, right.url: ReplicaState.SUSPENDED}
        for number in range(4):
            await ask(engine, str(number))
        assert not right.seen


async def test_an_update_that_no_server_takes_changes_nothing() -> None:
    left, right = Fake(), Fake()
    async with fakes(left, right), client(left, right) as engine:
        left.refuse = right.refuse = "update_weights_from_disk"
        with pytest.raises(EngineError, match="failed on 2 of 2 servers"):
            await engine.update_weights_from_disk("m2", version="2")
        assert engine.weight_version == "default"
        assert set(engine.replicas.values()) == {ReplicaState.HEALTHY}


async def test_a_pause_that_fails_somewhere_leaves_no_server_paused() -> None:
    left, right = Fake(), Fake()
    async with fakes(left, right), client(left, right) as engine:
        right.refuse = "pause_generation"
        with pytest.raises(EngineError, match="no luck"):
            await engine.pause(PauseMode.RETRACT)
        assert left.control == ["pause_generation", "continue_generation"]
        assert engine.paused is None
        assert (await ask(engine, "a")).token_ids == (5, 6)


async def test_a_group_for_weights_needs_every_server() -> None:
    left, right = Fake(), Fake()
    async with fakes(left, right), client(left, right) as engine:
        assert engine.weights_world_size == 3
        await right.stop()
        await until(lambda: engine.replicas[right.url] is ReplicaState.UNHEALTHY)
        with pytest.raises(EngineUnavailableError, match=right.url):
            await engine.init_weights_update_group("127.0.0.1", 1, backend="gloo")
        await engine.flush_cache()  # which the others can do without it
        assert left.control == ["flush_cache"]


# ---- arguments


async def test_servers_that_differ_are_refused() -> None:
    left, right = Fake("1"), Fake("2")
    async with fakes(left, right):
        with pytest.raises(ConfigError, match=r"weight_version '1'.*'2'.*Load the same weights into each alone"):
            await client(left, right).start()


async def test_one_dead_server_is_told_at_the_start() -> None:
    left, right = Fake(), Fake()
    async with fakes(left, right):
        await right.stop()
        with pytest.raises(EngineUnavailableError, match=right.url):
            await client(left, right).start()


@pytest.mark.parametrize(
    ("urls", "changes", "message"),
    [
        ((), {}, "at least one"),
        (("http://a", "http://a/"), {}, "twice"),
        (("http://a", "http://b"), {"workers": ["http://c"]}, "one router"),
    ],
)
def test_wrong_arguments_are_refused(urls: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SGLangServer(*urls, **changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("balance_abs_threshold", -1),
        ("balance_rel_threshold", 0.5),
        ("health_interval", 0),
        ("unavailable_timeout", -1),
        ("connect_timeout", 0),
    ],
)
def test_wrong_options_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        HttpOptions(**{name: value})


# ---- a router


class FakeRouter(Fake):
    """Knows its workers, pins keys to them, and reports a worker that is gone as sglang-router does."""

    def __init__(self, *workers: Fake) -> None:
        super().__init__()
        self.workers = workers
        self.lost: set[str] = set()

    async def _generate(self, request: web.Request) -> web.Response:
        key = request.headers.get("x-smg-routing-key")
        if key in self.lost:
            return web.json_response(
                {"error": {"code": "call_upstream_request_error", "message": "error sending request"}},
                status=500,
                headers={"x-smg-error-code": "call_upstream_request_error"},
            )
        return await super()._generate(request)


@contextlib.asynccontextmanager
async def routed(router: FakeRouter, *workers: Fake) -> AsyncIterator[None]:
    async with fakes(*workers):

        async def listed(request: web.Request) -> web.Response:
            return web.json_response({"workers": [{"url": worker.url} for worker in workers]})

        async def model_info(request: web.Request) -> web.Response:
            return web.Response(status=404)

        app = web.Application()
        app.router.add_get("/model_info", model_info)
        app.router.add_get("/workers", listed)
        app.router.add_get("/health", router._health)
        app.router.add_post("/generate", router._generate)
        runner = web.AppRunner(app, shutdown_timeout=0.05)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        router.port = runner.addresses[0][1]
        try:
            yield
        finally:
            router.go.set()
            await runner.cleanup()


async def test_a_router_gets_the_requests_and_its_workers_the_control_calls() -> None:
    left, right = Fake(), Fake()
    router = FakeRouter(left, right)
    async with routed(router, left, right), client(router) as engine:
        assert list(engine.replicas) == [left.url, right.url]
        await ask(engine, "a", "t1")
        await ask(engine, "b", "t1")
        await ask(engine, "c")
        assert router.keys == ["t1", "t1", None]
        await engine.pause()
        await engine.resume()
        assert left.control == right.control == ["pause_generation", "continue_generation"]
        router.go.clear()
        task = asyncio.create_task(ask(engine, "d", "t1"))
        await until(lambda: len(router.seen) == 4)
        aborting = asyncio.create_task(engine.abort("d"))
        await until(lambda: "abort_request" in left.control and "abort_request" in right.control)
        router.go.set()
        await asyncio.wait_for(asyncio.gather(task, aborting), 60)


async def test_a_trajectory_whose_worker_is_gone_gets_another_key() -> None:
    left = Fake()
    router = FakeRouter(left)
    async with routed(router, left), client(router) as engine:
        await ask(engine, "a", "t1")
        router.lost.add("t1")
        assert (await ask(engine, "b", "t1")).token_ids == (5, 6)
        await ask(engine, "c", "t1")
        first, second, third = router.keys
        assert first == "t1"
        assert second == third != "t1"


async def test_the_workers_can_be_given() -> None:
    left = Fake()
    router = FakeRouter()
    async with fakes(left), routed(router), client(router, workers=[left.url]) as engine:
        await ask(engine, "a")
        await engine.flush_cache()
        assert len(router.seen) == 1
        assert left.control == ["flush_cache"]


async def test_a_router_is_given_alone() -> None:
    left, other = Fake(), Fake()
    router = FakeRouter(left)
    async with routed(router, left), fakes(other):
        with pytest.raises(ConfigError, match="is a router: give it alone"):
            await client(router, other).start()
