"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is no error: generating inputs, and examples themselves, may take as long as they need.
settings.register_profile("toolgym", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("toolgym")
