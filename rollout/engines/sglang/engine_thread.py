"""The thread, the event loop and the child processes that `sglang.Engine` lives on."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError
from toolgym.tools.lazy import missing_extra

T = TypeVar("T")

WATCH_INTERVAL = 0.5
END_TIMEOUT = 60.0


class About(NamedTuple):
    model: dict[str, Any]
    server: dict[str, Any]
    vocab_size: int


class EngineThread:
    def __init__(self, server_args: dict[str, Any]) -> None:
        try:
            self._sglang = importlib.import_module("sglang")
            self._messages = importlib.import_module("sglang.srt.managers.io_struct")
            self._kill = importlib.import_module("sglang.srt.utils").kill_process_tree
        except ImportError as error:
            raise missing_extra("sglang", "SGLang in this process", error) from error
        self._server_args = server_args
        self._engine: Any = None
        self._loop: Any = None
        self._ready: Future[About] = Future()
        self._died = ""
        self._death: asyncio.Event | None = None
        self._callers: asyncio.AbstractEventLoop | None = None
        self._processes: list[Any] = []
        self._thread = threading.Thread(target=self._live, name="toolgym-sglang", daemon=True)
        self._before = set(multiprocessing.active_children())
        self._handler_before: Any = None
        self._ending = threading.Lock()

    @property
    def manager(self) -> Any:
        """SGLang's tokenizer manager; only for code that runs in `run`."""
        return self._engine.tokenizer_manager

    def message(self, name: str, **fields: Any) -> Any:
        return getattr(self._messages, name)(**fields)

    async def start(self, timeout: float) -> About:
        self._callers = asyncio.get_running_loop()
        self._death = asyncio.Event()
        self._catch_signal()
        self._thread.start()
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(asyncio.wrap_future(self._ready))
        except TimeoutError as error:
            raise EngineUnavailableError(f"sglang.Engine was not ready within {timeout:g} seconds") from error

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on SGLang's event loop; cancelling the call cancels it there."""
        if self._died:
            raise EngineUnavailableError(self._died)
        if self._loop is None or self._death is None or not self._loop.is_running():
            raise EngineError("the engine was closed")
        future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), self._loop))
        death = asyncio.create_task(self._death.wait())
        try:
            either: set[asyncio.Future[Any]] = {future, death}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            raise EngineUnavailableError(self._died)
        finally:
            future.cancel()
            death.cancel()

    async def close(self) -> None:
        await in_thread(self._end)
        self._release_signal()

    # ---- questions, to be asked in `run`

    async def server_info(self) -> dict[str, Any]:
        return {**self._about.server, "internal_states": await self.manager.get_internal_state()}

    async def loads(self) -> dict[str, Any]:
        loads = await self.manager.get_loads()
        return {"loads": [_plain(load) for load in loads]}

    async def metrics(self) -> str:
        if not self._about.server.get("enable_metrics"):
            raise EngineError("SGLang counts nothing: make the engine with enable_metrics=True")
        client = importlib.import_module("prometheus_client")
        multiprocess = importlib.import_module("prometheus_client.multiprocess")
        registry = client.CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
        text: bytes = client.generate_latest(registry)
        return text.decode()

    @property
    def _about(self) -> About:
        return self._ready.result()

    # ---- the thread

    def _live(self) -> None:
        policy = asyncio.get_event_loop_policy()
        try:
            self._engine = self._sglang.Engine(**self._server_args)
            # Importing it has set uvloop's policy for the whole process, which is not its to decide.
            asyncio.set_event_loop_policy(policy)
            loop = self._loop = self._engine.loop
            # SGLang's own end kills every child of this process, a sandbox's as well. Ours ends only SGLang's.
            atexit.unregister(self._engine.shutdown)
            atexit.register(self._end)
            watchdog = self.manager._subprocess_watchdog
            if watchdog is not None:
                watchdog.stop()  # it would end this process when a child dies
            self._processes = [process for process in multiprocessing.active_children() if process not in self._before]
            model, server = self._engine.get_model_info(), self._engine.get_server_info()
            model["tokenizer_path"] = server.get("tokenizer_path") or model["model_path"]
            about = About(model, server, int(self.manager.model_config.vocab_size))
        except BaseException as error:  # noqa: BLE001 - `start` raises it
            self._processes = [process for process in multiprocessing.active_children() if process not in self._before]
            self._ready.set_exception(
                ConfigError(f"sglang.Engine cannot start with these arguments: {type(error).__name__}: {error}")
            )
            return
        watching = loop.create_task(self._watch())
        loop.call_soon(self._ready.set_result, about)
        try:
            loop.run_forever()
        finally:
            left = asyncio.all_tasks(loop) | {watching}
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _watch(self) -> None:
        while True:
            for process in self._processes:
                if not process.is_alive():
                    self._report(f"a process of SGLang (pid {process.pid}) died with exit code {process.exitcode}")
                    return
            await asyncio.sleep(WATCH_INTERVAL)

    def _report(self, why: str) -> None:
        if self._died or self._callers is None or self._death is None:
            return
        self._died = f"{why}; make a new engine"
        with contextlib.suppress(RuntimeError):  # the callers' loop is closed, and its waiters are gone
            self._callers.call_soon_threadsafe(self._death.set)

    def _end(self) -> None:
        with self._ending:
            atexit.unregister(self._end)
            if not self._thread.is_alive() and not self._processes:
                return
            starting = (
                self._engine is None and self._thread.is_alive()
            )  # `start` gave up: end the processes that there are
            for process in set(multiprocessing.active_children()) - self._before if starting else self._processes:
                if process.is_alive():
                    self._kill(process.pid, include_parent=True, wait_timeout=None)
                process.join(END_TIMEOUT)
            self._processes = []
            if self._loop is not None and self._loop.is_running():
                self._loop.call_soon_threadsafe(self._loop.stop)
            if self._thread.is_alive():
                self._thread.join(END_TIMEOUT)
            if self._engine is not None:
                self._close_sockets()

    def _close_sockets(self) -> None:
        """SGLang leaves its sockets to the garbage collector, which would wait until the messages in them are taken."""
        zmq = importlib.import_module("zmq")
        contexts = set()
        for owner in (self._engine, self.manager):
            for name, value in list(vars(owner).items()):
                if isinstance(value, zmq.Socket):
                    contexts.add(value.context)
                    value.close(linger=0)
                    if name == "send_to_rpc":
                        setattr(owner, name, None)
        for context in contexts:
            context.destroy(linger=0)

    # ---- SIGQUIT, which a scheduler that dies sends to its parent

    def _catch_signal(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return

        def quit_signal(number: int, frame: object) -> None:
            if any(process.is_alive() for process in self._processes) or self._ready.done():
                self._report("a process of SGLang failed and said so by SIGQUIT (its own log has the cause)")
            else:
                signal.signal(signal.SIGQUIT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGQUIT)

        self._handler_before = signal.signal(signal.SIGQUIT, quit_signal)

    def _release_signal(self) -> None:
        if self._handler_before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGQUIT, self._handler_before)
            self._handler_before = None


def _plain(value: Any) -> Any:
    fields = getattr(value, "__struct_fields__", None)
    if fields is not None:
        return {name: _plain(getattr(value, name)) for name in fields}
    return value
