"""verl's entry point: what it registers, when, and what it says when it cannot."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
import types

import pytest

from toolgym.rollout.adapters.verl import plugin


def test_the_package_declares_it():
    [entry] = [one for one in importlib.metadata.entry_points(group="verl.plugins") if one.name == "toolgym"]
    assert entry.load() is plugin


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def test_it_imports_nothing_heavy():
    heavy = (
        "numpy",
        "gymnasium",
        "torch",
        "ray",
        "verl",
        "transformers",
        "toolgym.rollout.episode.episode",
        "toolgym.rollout.adapters.verl.rows",
    )
    done = run(f"import toolgym.rollout.adapters.verl.plugin, sys; print([m for m in {heavy!r} if m in sys.modules])")
    assert done.stdout.strip() == "[]"


STAND_IN = """
import sys, types, toolgym.rollout.adapters.verl.plugin
sys.path.insert(0, {folder!r})
import verl.experimental.agent_loop.agent_loop as loops
print(loops._agent_loop_registry)
"""


@pytest.mark.parametrize("text", ["_agent_loop_registry = {}", ""])
def test_a_module_is_registered_with_after_it_ran(text, tmp_path):
    """A package in verl's place: with its registry, and one in which a later version has none."""
    folder = tmp_path / "verl" / "experimental" / "agent_loop"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parents[1]):
        (package / "__init__.py").touch()
    (folder / "agent_loop.py").write_text(text or "other = {}")
    code = STAND_IN.format(folder=str(tmp_path))
    done = run(code if text else code.replace("print(loops._agent_loop_registry)", "print(loops.other)"))
    if text:
        assert (
            "'toolgym_agent': {'_target_': 'toolgym.rollout.adapters.verl.agent_loop.ToolgymAgentLoop'}" in done.stdout
        )
        assert done.stderr == ""
    else:
        assert done.stdout.strip() == "{}"  # verl goes on
        assert "RuntimeWarning: toolgym could not register itself with verl" in done.stderr
        assert "agent_loop_config_path" in done.stderr


def test_a_verl_that_is_too_old_is_named_in_a_line(tmp_path):
    """What verl 0.9.0 loads; 0.8 loads no plugin, and there the loop says so when it is named in a file."""
    folder = tmp_path / "verl-0.9.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.9.0\n")
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport toolgym.rollout.adapters.verl.plugin\n"
    loaded = "try:\n    from toolgym.rollout.adapters.verl import ToolgymAgentLoop\nexcept ImportError as error:\n"
    done = run(path + loaded + "    print(error)")
    assert "The adapter for verl needs verl>=0.9.1, found 0.9.0. Install it with: " in done.stderr
    assert "needs verl>=0.9.1, found 0.9.0" in done.stdout


def test_what_was_imported_before_is_registered_with_at_once(monkeypatch):
    module = types.ModuleType("verl.trainer.ppo.core_algos")
    module.ADV_ESTIMATOR_REGISTRY = {}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    importlib.reload(plugin)
    assert list(module.ADV_ESTIMATOR_REGISTRY) == ["toolgym_grpo"]


def test_verl_itself_loads_it_and_waits_with_the_agent_loop():
    pytest.importorskip("verl")
    done = run(
        "import verl, sys; print('verl.experimental.agent_loop.agent_loop' in sys.modules)\n"
        "from verl.experimental.agent_loop.agent_loop import _agent_loop_registry as loops\n"
        "from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as advantages\n"
        "print('toolgym_agent' in loops, 'toolgym_grpo' in advantages)"
    )
    assert done.stdout.split() == ["False", "True", "True"]
