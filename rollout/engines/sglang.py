"""`SGLangServer`: one SGLang server over HTTP."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from toolgym.rollout.engines.base import Engine, FinishReason, Generation, SamplingParams
from toolgym.rollout.engines.sglang_wire import (
    ServerInfo,
    error_text,
    read_generation,
    read_info,
    request_body,
)
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError

ATTEMPTS = 4
"""How often a request is sent at most; see `SGLangServer` for when it is sent again."""
BACKOFF = 0.25
"""Seconds before the first repetition; doubles each time."""
RETRY_AFTER_LIMIT = 30.0
"""Most seconds that a server's `Retry-After` is followed."""
ABORT_AGAIN = (0.1, 0.4, 1.0)
"""Seconds after which an abort is sent again while the request still runs: one that overtakes it is dropped."""
WITHDRAW_DEADLINE = 5.0
"""Most seconds that a cancelled or closed request is waited for after its abort."""
FIRST_ANSWER = 10.0
"""Most seconds to wait for the first answer of all, which costs a server nothing."""
IDLE_CONNECTION = 3.0
"""Seconds that an idle connection is kept: less than the server's 5, or a request meets a closing connection."""


class _Flight:
    """One `generate` call that is on its way."""

    def __init__(self) -> None:
        self.rid = ""
        self.sent = False
        self.aborted = False
        self.task: asyncio.Task[Generation] | None = None


class SGLangServer(Engine):
    """Generates on one SGLang server, through its token-in-token-out `/generate`.

    Logprobs: SGLang reports them under the temperature-scaled distribution before top-p, top-k and min-p, and
    unscaled at temperature 0 (`layers/sampler.py`), which is this library's meaning. The server must not run with
    `SGLANG_RETURN_ORIGINAL_LOGPROB`, which makes all of them unscaled; no endpoint tells it.

    Seeds: a server honours them only when started with `--enable-deterministic-inference`; others ignore them. Such
    a server gives every request *without* a seed the same one (42), so this engine draws one for each. It cannot
    combine seeds with min-p (its sampler dies), which is refused here.

    Stopping: a server also stops at the model's own end-of-sequence ids when `stop_token_ids` is not empty.

    A request is sent again only where it is safe: when the connection was refused before anything was sent, and
    when the server says 429 or 503 with `Retry-After` or that its queue is full; at most `ATTEMPTS` times.

    Requests that start while this engine has paused the server wait here, not there: SGLang loses the abort of a
    request that waits for the end of a pause. An abort of a running request during a pause takes effect after it.

    One engine belongs to the event loop that called `start`.

    Args:
        url: the server, for example "http://127.0.0.1:30000". A worker, not a router: routers lack the control
            endpoints.
        request_timeout: seconds for one generation, waiting on the server and pauses included.
        connect_timeout: seconds to connect.
        control_timeout: seconds for every other call.
        api_key: sent as a bearer token.
        vocab_size: number of token ids, for a server whose model folder is not on this machine: SGLang does not
            tell it.

    Raises:
        ConfigError: an argument is not usable.
    """

    def __init__(
        self,
        url: str,
        *,
        request_timeout: float = 1800.0,
        connect_timeout: float = 5.0,
        control_timeout: float = 30.0,
        api_key: str | None = None,
        vocab_size: int | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"the url of an SGLang server must begin with http:// or https://, got {url!r}")
        if not _has_address(url):
            raise ConfigError(f"the url of an SGLang server must look like http://host:30000, got {url!r}")
        timeouts = {
            "request_timeout": request_timeout,
            "connect_timeout": connect_timeout,
            "control_timeout": control_timeout,
        }
        for name, value in timeouts.items():
            if not value > 0:
                raise ConfigError(f"{name} must be a positive number of seconds, got {value!r}")
        if vocab_size is not None and vocab_size < 1:
            raise ConfigError(f"vocab_size must be at least 1, got {vocab_size!r}")
        self.url = url.rstrip("/")
        self._request_timeout = request_timeout
        self._connect_timeout = connect_timeout
        self._control_timeout = control_timeout
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._wanted_vocab_size = vocab_size
        self._info: ServerInfo | None = None
        self._weight_version = ""
        self._random = random.Random()
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flights: dict[str, _Flight] = {}
        self._withdrawals: set[asyncio.Task[None]] = set()
        self._running = asyncio.Event()
        self._running.set()
        self._closed = False

    @property
    def info(self) -> ServerInfo:
        """What the server says about itself. Raises EngineError before `start`."""
        if self._info is None:
            raise EngineError("the server is asked by start(): await engine.start() first")
        return self._info

    @property
    def vocab_size(self) -> int:
        return self.info.vocab_size

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and generation together that the server serves whole; a few below the model's."""
        return self.info.context_length

    @property
    def weight_version(self) -> str:
        """The newest version that the server told, at `start` or with a generation."""
        self.info  # noqa: B018 - raises before start
        return self._weight_version

    async def start(self) -> None:
        """Connect and ask the server what it serves. Starting twice is fine.

        Raises:
            EngineUnavailableError: nothing answers.
            EngineError: what answers is not an SGLang server, or refuses the key.
            ConfigError: the vocabulary's size is not known; see `vocab_size`.
        """
        if self._closed:
            raise EngineError("the engine was closed; make a new one")
        if self._info is not None:
            return
        self._loop = asyncio.get_running_loop()
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION), headers=self._headers
        )
        try:
            self._session = session
            first = min(FIRST_ANSWER, self._control_timeout)
            model = await self._ask("/model_info", "/get_model_info", "model_path", first)
            server = await self._ask("/server_info", "/get_server_info", "max_req_input_len", self._control_timeout)
            info = await asyncio.to_thread(read_info, self.url, model, server, self._wanted_vocab_size)
        except BaseException:
            self._session = None
            await session.close()
            raise
        self._weight_version = info.weight_version
        self._info = info

    async def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        affinity: str | None = None,
    ) -> Generation:
        self._require_open()
        self.check_request(prompt_ids, params)
        body = request_body(prompt_ids, params, self._seed(params))
        if request_id in self._flights:
            raise ConfigError(f"request id {request_id!r} is already running")
        flight = _Flight()
        task = flight.task = asyncio.create_task(self._fly(flight, body, params))
        self._flights[request_id] = flight
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await self._withdraw(flight)
            raise
        finally:
            del self._flights[request_id]
        if task.cancelled():
            if flight.aborted and not flight.sent:
                return Generation((), (), FinishReason.ABORT, ())
            raise EngineError("the engine was closed before the server answered")
        return task.result()

    async def abort(self, request_id: str) -> None:
        flight = self._flights.get(request_id)
        if flight is not None:
            self._require_open()
            await self._abort(flight)

    async def pause(self) -> None:
        self._require_open()
        self._running.clear()
        try:
            # in_place keeps keys and values, so that what is in flight goes on from where it is.
            await self._control("/pause_generation", {"mode": "in_place"})
        except BaseException:
            self._running.set()
            raise

    async def resume(self) -> None:
        self._require_open()
        await self._control("/continue_generation", {})
        self._running.set()

    async def close(self) -> None:
        """Abort what runs on the server, and close the connections. The server itself goes on."""
        if self._closed:
            return
        self._closed = True
        if self._session is None:
            return
        flights = list(self._flights.values())
        await asyncio.gather(*(self._withdraw(flight) for flight in flights))
        if self._withdrawals:
            await asyncio.wait(self._withdrawals, timeout=WITHDRAW_DEADLINE)
        await self._session.close()

    # ---- one request

    def _seed(self, params: SamplingParams) -> int | None:
        if not self.info.deterministic:
            return params.seed
        if params.min_p > 0:
            raise ConfigError("SGLang with --enable-deterministic-inference cannot sample with min_p")
        return self._random.getrandbits(63) if params.seed is None else params.seed

    async def _fly(self, flight: _Flight, body: dict[str, Any], params: SamplingParams) -> Generation:
        """Send a request until the server takes it."""
        try:
            async with asyncio.timeout(self._request_timeout):
                await self._running.wait()
                for attempt in range(ATTEMPTS):
                    # A new id each time, and of one length: SGLang aborts every id that begins with a given one.
                    flight.rid = uuid.uuid4().hex
                    flight.sent = True
                    delay = BACKOFF * 2**attempt
                    try:
                        status, answer, headers = await self._post("/generate", body | {"rid": flight.rid})
                    except EngineUnavailableError:
                        if attempt == ATTEMPTS - 1:
                            raise
                    else:
                        if status == 200:
                            generation = read_generation(answer, params)
                            if generation.weight_versions:
                                self._weight_version = generation.weight_versions[-1]
                            return generation
                        wait = _retry_delay(status, answer, headers, delay)
                        if wait is None or attempt == ATTEMPTS - 1:
                            raise _refusal(self.url, "/generate", status, answer)
                        delay = wait
                    flight.sent = False
                    if flight.aborted:
                        return Generation((), (), FinishReason.ABORT, ())
                    await asyncio.sleep(delay)
                raise AssertionError("the last attempt returns or raises")
        except TimeoutError as error:
            if flight.sent:
                await self._try_abort(flight.rid)
            raise EngineError(f"{self.url} gave no answer within {self._request_timeout:g} seconds") from error

    async def _abort(self, flight: _Flight) -> None:
        """Ask the server to end a request, until it ended or it is clear that it was asked."""
        flight.aborted = True
        task = flight.task
        if task is None or task.done():
            return
        if not flight.sent:
            task.cancel()
            await asyncio.wait({task})
            return
        await self._control("/abort_request", {"rid": flight.rid})
        if not self._running.is_set():
            return  # a paused server ends it after the pause
        for delay in ABORT_AGAIN:
            await asyncio.wait({task}, timeout=delay)
            if task.done() or not flight.sent:
                return
            await self._control("/abort_request", {"rid": flight.rid})

    async def _withdraw(self, flight: _Flight) -> None:
        """End a request whatever it takes, also when the caller is cancelled again meanwhile."""

        async def withdraw() -> None:
            try:
                async with asyncio.timeout(WITHDRAW_DEADLINE):
                    await self._abort(flight)
                    if flight.task is not None and self._running.is_set():
                        await asyncio.wait({flight.task})
            except (TimeoutError, EngineError):
                pass  # closing the connection, below, makes the server abort too, some seconds later
            finally:
                if flight.task is not None:
                    flight.task.cancel()
                    await asyncio.wait({flight.task})
                    if not flight.task.cancelled():
                        flight.task.exception()  # seen: asyncio must not log it as never retrieved

        task = asyncio.create_task(withdraw())
        self._withdrawals.add(task)
        task.add_done_callback(self._withdrawals.discard)
        await asyncio.shield(task)

    async def _try_abort(self, rid: str) -> None:
        try:
            async with asyncio.timeout(WITHDRAW_DEADLINE):
                await self._control("/abort_request", {"rid": rid})
        except (TimeoutError, EngineError):
            return  # the caller already raises that the server does not answer

    # ---- HTTP

    async def _ask(self, path: str, older_path: str, field: str, timeout: float) -> dict[str, Any]:
        for candidate in (path, older_path):
            status, answer, _ = await self._call("GET", candidate, None, timeout)
            if status == 200 and isinstance(answer, dict) and field in answer:
                return answer
            if status in (401, 403, 503):
                raise _refusal(self.url, candidate, status, answer)
        raise EngineError(
            f"{self.url} answers, but not as an SGLang server does: {older_path} gave {status} "
            f"{error_text(answer)!r}. Point the url at an SGLang server itself, not at a router"
        )

    async def _control(self, path: str, body: dict[str, Any]) -> None:
        status, answer, _ = await self._call("POST", path, body, self._control_timeout)
        if status != 200:
            raise _refusal(self.url, path, status, answer)

    def _post(self, path: str, body: dict[str, Any]) -> Coroutine[Any, Any, tuple[int, Any, dict[str, str]]]:
        # The caller's own deadline is the earlier one; aiohttp's is the belt to its braces.
        return self._call("POST", path, body, self._request_timeout + 1)

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None, timeout: float
    ) -> tuple[int, Any, dict[str, str]]:
        """Send one request; return status, decoded body (JSON or text) and headers."""
        if self._session is None:
            raise EngineError("the engine was not started: await engine.start() first")
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=self._connect_timeout)
        try:
            async with self._session.request(method, f"{self.url}{path}", json=body, timeout=limit) as response:
                text = await response.text(errors="replace")
                status, headers = response.status, dict(response.headers)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise EngineUnavailableError(
                f"nothing answers at {self.url} ({error}). Start a server there with: python -m sglang.launch_server "
                f"--model-path MODEL --host HOST --port PORT, wait until it is ready, or correct the url"
            ) from error
        except TimeoutError as error:
            raise EngineError(f"{self.url}{path} gave no answer within {timeout:g} seconds") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{self.url}{path} broke off: {type(error).__name__}: {error}") from error
        try:
            return status, json.loads(text) if text else None, headers
        except ValueError as error:
            if status == 200 and path == "/generate":
                raise EngineError(f"{self.url}{path} must answer with JSON, got {text[:200]!r}") from error
            return status, text, headers

    def _require_open(self) -> None:
        if self._closed:
            raise EngineError("the engine was closed")
        self.info  # noqa: B018 - raises before start
        if asyncio.get_running_loop() is not self._loop:
            raise EngineError("the engine belongs to the event loop that started it; make one per event loop")


def _has_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number or too large, an open bracket
        return False


def _retry_delay(status: int, answer: Any, headers: dict[str, str], delay: float) -> float | None:
    """Return the seconds after which the same request may be sent again; None when it may not."""
    if status not in (429, 503):
        return None
    named = {name.lower(): value for name, value in headers.items()}.get("retry-after")
    if named is None:
        # SGLang sends no Retry-After. Its other 503s (a running request timed out) would only do the same again.
        return delay if "queue is full" in error_text(answer) else None
    try:
        return min(max(float(named), 0.0), RETRY_AFTER_LIMIT)
    except ValueError:  # the header may also be a date
        return delay


def _refusal(url: str, path: str, status: int, answer: Any) -> ConfigError | EngineError:
    text = error_text(answer)
    if path == "/generate" and status == 400:
        return ConfigError(f"SGLang refused the request: {text}")
    if status in (401, 403):
        return EngineError(f"{url}{path} answered {status}: {text}. Pass the server's api_key")
    return EngineError(f"{url}{path} answered {status}: {text}")
