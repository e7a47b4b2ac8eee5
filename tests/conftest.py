"""Settings that all tests share, and the tier that each test belongs to (see `markers` in pyproject.toml)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading

# Before anything imports torch: tiny models gain nothing from threads, which spin where the tests fill all processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.as_typed import as_program, as_typed  # noqa: F401
from tests.processes import end_with_the_tests

# A busy machine is no error: generating inputs, and examples themselves, may take as long as they need.
LENIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=10, **LENIENT)
settings.register_profile("ci", max_examples=60, **LENIENT)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")
settings.load_profile(PROFILE)
if PROFILE == "dev" and hasattr(providers, "_get_local_constants"):
    # Each process would parse all modules of the library for constants to try, five seconds in a fresh checkout.
    providers._get_local_constants = lambda: providers._local_constants

INHERITED = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
"""Signals that `nohup` and a shell's `&` have a program ignore, and what they do otherwise. Each process that a test
starts would inherit that."""


def pytest_addoption(parser):
    parser.addoption("--event-loop", choices=("asyncio", "uvloop"), default="asyncio", help="whose event loops to use")


def pytest_configure(config):
    if hasattr(config, "workerinput"):  # a worker of xdist: it would go on with its test when the controller is killed
        end_with_the_tests()
    for number, usual in INHERITED.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    if config.getoption("--event-loop") == "uvloop":
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return _no_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return _no_skip((yield))


def _no_skip(report):
    """A skip is a failure where all is there that the tests need: TOOLGYM_NO_SKIPS=1, see scripts/trainers."""
    if os.environ.get("TOOLGYM_NO_SKIPS") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skipped, and no test may be: {report.longrepr[2]}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Everything that the tests import and the tests themselves stay to the end: some million objects, of which the
    garbage collector looks at each in a second, while they are loaded and then again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items):
    weaker = set(_levels()[1:])
    for item in items:
        given = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if any(isinstance(value, str) and value in weaker for value in given):
            item.add_marker(pytest.mark.matrix)


@pytest.fixture
def end_lingering():
    """Ends the shared sandboxes that no handle has any more, before the test and when called.

    For tests that count processes and threads, or assert that none is left.
    """
    from toolgym.tools.sandbox import SharedSandbox

    def end() -> None:
        thread = threading.Thread(target=lambda: asyncio.run(SharedSandbox.end_lingering()))
        thread.start()
        thread.join()

    end()
    return end


def _levels() -> list[str]:
    """The levels of isolation of this machine, strongest first."""
    from toolgym.tools.sandbox.local import probe

    return list(probe()["levels"])


@pytest.fixture
def registry():
    """The registries of toolgym and of Gymnasium, to alter at will."""
    import gymnasium

    from toolgym.envs import registry

    specs, gym_specs = dict(registry._specs), dict(gymnasium.registry)
    yield registry
    for live, kept in ((registry._specs, specs), (gymnasium.registry, gym_specs)):
        live.clear()
        live.update(kept)
