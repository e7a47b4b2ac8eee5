"""Settings that all tests share."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, settings

# A busy machine is no error: generating inputs, and examples themselves, may take as long as they need.
settings.register_profile("toolgym", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("toolgym")


def pytest_addoption(parser):
    parser.addoption("--event-loop", choices=("asyncio", "uvloop"), default="asyncio", help="whose event loops to use")


def pytest_configure(config):
    if config.getoption("--event-loop") == "uvloop":
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
