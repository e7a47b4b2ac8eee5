"""A Ray cluster of several nodes on this machine, which leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time

NODE = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


@contextlib.contextmanager
def cluster(*cpus):
    """A cluster whose nodes have so many processors each, the head first; this process is connected to it.

    Its files are in a folder of its own, so that other programs of this machine that use Ray do not find it.
    """
    folder = tempfile.mkdtemp(prefix="tgray", dir="/tmp")  # a short name: sockets lie in it
    before = dict(os.environ)
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_TMPDIR=folder)
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(shutdown_at_exit=True)  # a reaper ends its processes when this one is killed
    try:
        for count in cpus:
            made.add_node(num_cpus=count, **NODE)
        ray.init(made.address, log_to_driver=False, configure_logging=False, namespace="tests")
        made.wait_for_nodes(120)
        yield made
    finally:
        try:
            ray.shutdown()
        finally:
            made.shutdown()
            os.environ.clear()
            os.environ.update(before)
            shutil.rmtree(folder, ignore_errors=True)


def until(holds, seconds=60.0):
    """Wait until a function returns something true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain"
        time.sleep(0.02)
    return found


def on_node(node):
    """Ray's options for an actor or task that is to run on one node of `cluster`."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node.node_id, soft=False)}
