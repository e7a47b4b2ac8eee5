"""`SGLangEngine` passes the suite of all engines.

SGLang lives in an environment of its own, so the suite runs there, in a process of its own; this file is run twice:
outside it starts that process, inside it adds what only this engine does.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.sglang

SUITE_SECONDS = 900.0

if os.environ.get("TOOLGYM_SGLANG_IN_PROCESS") != "1":

    @pytest.mark.timeout(SUITE_SECONDS + 60)
    def test_sglang_in_process_passes_the_suite(farm: Any) -> None:
        farm.need_venv()
        here = Path(__file__).parent
        done = subprocess.run(
            [
                *(str(farm.python), "-W", "ignore", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
                # SGLang leaves a folder and some sockets to the garbage collector.
                *("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"),
                *("-o", "asyncio_default_fixture_loop_scope=session", "-o", "asyncio_default_test_loop_scope=session"),
                *(str(here / "test_conformance.py"), str(here / "test_real_sglang_engine.py")),
            ],
            env={**os.environ, **farm.environment, "TOOLGYM_SGLANG_IN_PROCESS": "1"},
            cwd=here.parents[2],
            capture_output=True,
            text=True,
            timeout=SUITE_SECONDS,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        print(done.stdout.splitlines()[-1])

else:
    from toolgym.rollout.engines import PauseMode, SamplingParams, SGLangEngine
    from toolgym.rollout.models.tiny import tiny_policy_path
    from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError

    LONG = SamplingParams(max_new_tokens=1500)
    SHORT = SamplingParams(max_new_tokens=8)

    async def test_weights_from_disk_and_from_tensors(subject: Any) -> None:
        engine, version = subject.engine, subject.engine.weight_version
        try:
            await engine.update_weights_from_disk(str(tiny_policy_path()), version="disk")
            assert (await engine.generate([1, 2], SHORT, request_id="a")).weight_versions == ("disk",) * 8
            task = asyncio.create_task(engine.generate([1, 2], SamplingParams(max_new_tokens=300), request_id="a"))
            await asyncio.sleep(0.05)
            await engine.generate([1, 2, 3], SHORT, request_id="behind")  # "a" has begun
            await engine.pause(PauseMode.RETRACT)
            weights = {name: value for name, value in subject.model.state_dict().items() if name != "lm_head.weight"}
            await engine.update_weights_from_tensors(weights, version="tensors")
            await engine.resume()
            assert set((await task).weight_versions) == {"disk", "tensors"}
            with pytest.raises(EngineError, match="update_weights_from_disk"):
                await engine.update_weights_from_disk("/absent", version="never")
        finally:
            await engine.update_weight_version(version)

    async def test_it_tells_what_it_does(subject: Any) -> None:
        await subject.engine.generate([1, 2], SHORT, request_id="a")
        assert any(name.startswith("sglang:") for name in (await subject.engine.metrics())["sglang.Engine"])
        assert (await subject.engine.loads())["sglang.Engine"][0]["max_running_requests"] == 128
        assert (await subject.engine.server_info())["sglang.Engine"]["version"] == subject.engine.info.sglang_version
        await subject.engine.flush_cache()

    async def test_wrong_arguments_are_refused() -> None:
        with pytest.raises(ConfigError, match="model_path"):
            SGLangEngine("model", model_path="model")
        with pytest.raises(ConfigError, match="start_timeout"):
            SGLangEngine("model", start_timeout=0)
        engine = SGLangEngine("/absent/model", device="cpu")
        with pytest.raises(ConfigError, match="cannot start"):
            await engine.start()
        await engine.close()

    async def test_a_scheduler_that_dies_fails_its_requests_and_nothing_else(subject: Any) -> None:
        """The last test: it ends one engine while another, and a child that is not SGLang's, go on."""
        stranger = subprocess.Popen(["sleep", "600"])
        before = set(multiprocessing.active_children())
        engine = subject.make()
        try:
            await engine.start()
            task = asyncio.create_task(engine.generate([1, 2, 3], LONG, request_id="a"))
            await asyncio.sleep(0.3)
            scheduler, *_ = set(multiprocessing.active_children()) - before
            os.kill(scheduler.pid, signal.SIGKILL)
            with pytest.raises(EngineUnavailableError, match="died"):
                await asyncio.wait_for(task, 60)
            with pytest.raises(EngineUnavailableError, match="make a new engine"):
                await engine.generate([1], SHORT, request_id="b")
        finally:
            await engine.close()
            alive = stranger.poll() is None
            stranger.kill()
            stranger.wait()
        assert alive
        assert set(multiprocessing.active_children()) == before
        assert (await subject.engine.generate([1], SHORT, request_id="a")).token_ids
