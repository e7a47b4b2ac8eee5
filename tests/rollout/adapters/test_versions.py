"""A trainer that is too old is named with its version where its adapter is loaded."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from toolgym.rollout.adapters.versions import LEAST, needs
from toolgym.tools.errors import MissingExtraError

ROOT = Path(__file__).parents[3]

ADAPTERS = {
    "agentlightning": "import toolgym.rollout.adapters.agent_lightning",
    "areal": "from toolgym.rollout.adapters.areal import ToolgymWorkflow",
    "gem-llm": "import toolgym.rollout.adapters.gem",
    "google-tunix": "from toolgym.rollout.adapters.tunix import to_items",
    "nemo-gym": "from toolgym.rollout.adapters.nemo_gym import ToolgymServer",
    "openrlhf": "from toolgym.rollout.adapters.openrlhf import agent_executor as make; make('CodeInterpreter-v0')",
    "skyrl": "from toolgym.rollout.adapters.skyrl import ToolgymGenerator",
    "skyrl-gym": "from toolgym.rollout.adapters.skyrl.text_env import register_envs",
    "tinker-cookbook": "from toolgym.rollout.adapters.tinker import ToolgymDatasetBuilder",
    "torchrl": "from toolgym.rollout.adapters.torchrl import to_tensordict",
    "TransferQueue": "from toolgym.rollout.adapters.transfer_queue import TransferQueueWriter",
    "torchtitan": "import toolgym.rollout.adapters.titanrl",
    "trl": "from toolgym.rollout.adapters.trl import Spec; Spec('CodeInterpreter-v0', num_tasks=1, policy='tiny')",
    "verifiers": "from toolgym.rollout.adapters.verifiers.v1 import ToolgymTaskset",
    "verl": "from toolgym.rollout.adapters.verl import ToolgymAgentLoop",
}
"""From a package to what loads its adapter."""

EACH = """
import json, sys
said = {}
for package, line in json.load(sys.stdin).items():
    try:
        exec(line)
    except ImportError as error:
        said[package] = f"{type(error).__name__}: {error}"
json.dump(said, sys.stdout)
"""


def install(folder: Path, package: str, version: str) -> None:
    """Leave the metadata of a package in a folder, as pip would."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n", encoding="utf-8")


def test_the_table_has_the_versions_of_the_tests():
    lists = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "scripts/trainers").glob("*.txt"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    tested = dict(re.findall(r"^([\w-]+)==([\w.]+)$", lists, re.MULTILINE))
    assert {name: tested.get(name, "1.16") for name in LEAST} == LEAST
    assert f"trl>={LEAST['trl']}" in extras["trl"]
    assert extras["verl"] == [f"verl>={LEAST['verl']}"]


def test_each_adapter_says_that_its_trainer_is_too_old(tmp_path):
    assert ADAPTERS.keys() == LEAST.keys()
    for package in LEAST:
        install(tmp_path, package, "0.0.9")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{EACH}"
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps(ADAPTERS), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for package, least in LEAST.items():
        assert re.match(
            rf"MissingExtraError: .* needs {package}(\[[\w-]+\])?>={least}, found 0\.0\.9\. Install it with: .* -m pip "
            rf"install '{package}(\[[\w-]+\])?>={least}'($|\. )",
            said.get(package, "nothing"),
        ), said


@pytest.mark.parametrize(
    "version", ["1.16", "1.16.0", "1.16.0.dev0", "1.16.0rc1", "1.17.0.dev0", "2", "0.1.dev3+g1a2b3c4", "unknown"]
)
def test_a_version_that_is_new_enough_or_unknown_is_taken(version, tmp_path, monkeypatch):
    install(tmp_path, "trl", version)
    monkeypatch.syspath_prepend(tmp_path)
    with needs("trl", "The adapter for TRL"):
        pass


@pytest.mark.parametrize("version", ["0.27.2", "1.0.0", "1.12", "1.15.3.dev0", "1.15.99+cu128", "v1.2"])
def test_an_older_version_is_refused(version, tmp_path, monkeypatch):
    install(tmp_path, "trl", version)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=re.escape(f"trl>=1.16, found {version}.")), needs("trl", "TRL"):
        pass


def test_a_checkout_on_the_path_without_metadata_is_taken(monkeypatch):
    monkeypatch.setitem(LEAST, "a-checkout-on-the-path", "1.0")
    with needs("a-checkout-on-the-path", "This"):
        pass


def test_what_pip_would_call_satisfied_is_asked_for_by_its_exact_version(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"pip install 'areal>=1\.0\.4'$"), needs("areal", "AReaL"):
        import areal_without_that
    install(tmp_path, "areal", "9.0")
    with pytest.raises(MissingExtraError, match=r"pip install areal==1\.0\.4$"), needs("areal", "AReaL"):
        import areal_without_that  # noqa: F401
