"""The configurations of docs/server.md are what their programs take, and name what there is."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from toolgym.tools.sandbox.server.execute import SandboxMetrics

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text()


def _block(language):
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_the_unit_of_systemd(tmp_path):
    program = tmp_path / "toolgym"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "toolgym-sandbox.service"
    unit.write_text(_block("ini").replace("/opt/toolgym/bin/toolgym", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert unit.name not in done.stderr  # nor a warning about a line of it


@pytest.mark.skipif(shutil.which("nginx") is None, reason="there is no nginx")
def test_the_configuration_of_nginx(tmp_path):
    file = tmp_path / "nginx.conf"
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"  {kind}_temp_path {tmp_path}/{kind};\n" for kind in kinds)  # the default ones are root's
    text = _block("nginx").replace("http {\n", f"http {{\n  access_log off;\n{folders}", 1)
    file.write_text(f"pid {tmp_path}/pid;\nerror_log stderr;\n{text}")
    done = subprocess.run(
        ["nginx", "-t", "-p", str(tmp_path), "-c", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_objects_of_kubernetes():
    service, pods = yaml.safe_load_all(_block("yaml"))
    [container] = pods["spec"]["template"]["spec"]["containers"]
    assert service["spec"]["selector"] == pods["spec"]["selector"]["matchLabels"]
    assert service["metadata"]["name"] == pods["spec"]["serviceName"]
    assert {container[f"{one}Probe"]["httpGet"]["path"] for one in ("startup", "readiness", "liveness")} == {
        "/readyz",
        "/healthz",
    }


def test_the_figures_are_those_of_the_server():
    families = {one.name for one in SandboxMetrics().registry.collect()}
    named = set(re.findall(r"`((?:toolgym_sandbox|process)_\w+?)(?:_total)?`", PAGE))
    assert "toolgym_sandbox_worker_restarts" in named
    assert named - families == {"toolgym_sandbox_running"}  # which the service adds
