"""How far a tool's rate limit reaches, without a cluster."""

from __future__ import annotations

import pytest

from toolgym.tools import CodeInterpreterTool, SearchTool
from toolgym.tools.concurrency.execution_pool import init_execution_pool
from toolgym.tools.errors import ClusterError, ConfigError


def test_without_a_cluster_the_error_says_what_to_do():
    config = {"rate_limit": 3, "rate_limit_scope": "cluster"}
    for make in (
        lambda: CodeInterpreterTool(config),
        lambda: SearchTool({**config, "retrieval_service_url": "http://127.0.0.1:9/retrieve"}),
        lambda: init_execution_pool(1, rate_limit_scope="cluster"),
    ):
        with pytest.raises(ClusterError, match="call ray.init first"):
            make()


def test_a_scope_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="rate_limit_scope"):
        CodeInterpreterTool({"rate_limit": 3, "rate_limit_scope": "galaxy"})
    with pytest.raises(ConfigError, match="'process' or 'cluster', got 'galaxy'"):
        init_execution_pool(1, rate_limit_scope="galaxy")
