"""What `import toolgym` loads, and what it offers."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import toolgym
import toolgym.envs
import toolgym.rollout
import toolgym.rollout.advantages
import toolgym.rollout.engines
import toolgym.rollout.episode
import toolgym.rollout.models
import toolgym.rollout.recording
import toolgym.rollout.runner
import toolgym.rollout.runner.metrics
import toolgym.rollout.runner.ray
import toolgym.rollout.tokens
import toolgym.rollout.trajectory
import toolgym.testing
import toolgym.tools
import toolgym.tools.sandbox
import toolgym.wrappers
from toolgym.tools.errors import MissingExtraError

HEAVY = {
    "aiohttp",
    "datasets",
    "gymnasium",
    "jinja2",
    "jsonschema",
    "numpy",
    "prometheus_client",
    "pydantic",
    "ray",
    "rich",
    "safetensors",
    "sglang",
    "tenacity",
    "textual",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
    "typer",
    "yaml",
}

LAYERS = [
    toolgym,
    toolgym.envs,
    toolgym.rollout,
    toolgym.rollout.advantages,
    toolgym.rollout.engines,
    toolgym.rollout.episode,
    toolgym.rollout.models,
    toolgym.rollout.recording,
    toolgym.rollout.runner,
    toolgym.rollout.runner.metrics,
    toolgym.rollout.runner.ray,
    toolgym.rollout.tokens,
    toolgym.rollout.trajectory,
    toolgym.testing,
    toolgym.tools,
    toolgym.tools.sandbox,
    toolgym.wrappers,
]
layers = pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_importing_loads_nothing_heavy():
    loaded = json.loads(python("import json, sys, toolgym; print(json.dumps(sorted(sys.modules)))"))
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()


def test_importing_loads_no_package_but_this_one():
    added = json.loads(
        python(
            "import json, sys; before = set(sys.modules); import toolgym, toolgym.rollout.adapters.verl.plugin; "
            "print(json.dumps(sorted(set(sys.modules) - before)))"
        )
    )
    foreign = {name.partition(".")[0] for name in added} - sys.stdlib_module_names
    assert {name for name in foreign if not name.startswith("__editable__")} == {"toolgym"}
    assert not any(name in added for name in ("toolgym.envs.gym.gymnasium_env", "toolgym.tools.base"))


@pytest.mark.parametrize("modules", ["toolgym, gymnasium", "gymnasium, toolgym"])
def test_gymnasium_knows_the_envs_in_either_order_of_imports(modules):
    python(f"import {modules}; assert gymnasium.spec('CodeInterpreter-v0').vector_entry_point")


def test_gymnasium_learns_ids_that_were_given_before_and_after_its_import():
    python(
        "import toolgym; toolgym.register('Early-v0', 'early:Env'); import gymnasium; "
        "toolgym.register('Late-v0', 'late:Env'); gymnasium.spec('Early-v0'), gymnasium.spec('Late-v0')"
    )


def test_an_id_that_gymnasium_has_is_a_warning_when_it_is_imported_and_an_error_after():
    code = (
        "import toolgym; toolgym.register('CartPole', 'mine:Env'); import warnings\n"
        "with warnings.catch_warnings(record=True, action='always') as seen: import gymnasium\n"
        "gymnasium.spec('CodeInterpreter-v0'); print(*[one.message for one in seen])\n"
        "try: toolgym.register('Acrobot', 'mine:Env')\n"
        "except toolgym.ToolgymError as error: print(error)\n"
    )
    first, second = python(code).splitlines()
    assert first.startswith("Gymnasium does not take the env id 'CartPole'")
    assert second.startswith("Gymnasium does not take the env id 'Acrobot'")


@layers
def test_every_public_name_resolves(layer):
    assert layer.__all__ == sorted(layer.__all__)
    for name in layer.__all__:
        assert getattr(layer, name) is not None


WITHOUT = """
import importlib, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
for layer in {layers!r}:
    scope = {{}}
    exec(f"from {{layer}} import *", scope)
    names = sys.modules[layer].__all__
    print(layer, len(names), *[name for name in names if name not in scope])
"""


OPTIONAL = (
    *("torch", "transformers", "tokenizers", "safetensors", "jinja2", "ray", "sglang", "trl", "verl", "mcp"),
    *("pyarrow", "datasets", "pandas", "rich", "typer", "textual", "math_verify"),
)


@pytest.mark.parametrize(
    ("layers", "blocked"),
    [
        (LAYERS, OPTIONAL),
        *(pytest.param([layer], OPTIONAL, marks=pytest.mark.long, id=layer.__name__) for layer in LAYERS),
        pytest.param([toolgym.rollout], ("ray",), marks=pytest.mark.long),
        pytest.param([toolgym.rollout.runner.ray], ("ray",), marks=pytest.mark.long),
    ],
)
def test_a_star_import_works_without_optional_packages(layers, blocked):
    """In one process here; `long` ones import each layer alone, since a process takes a second."""
    lines = python(WITHOUT.format(blocked=blocked, layers=[layer.__name__ for layer in layers])).splitlines()
    for layer, line in zip(layers, lines, strict=True):
        name, count, *lost = line.split()
        assert (name, lost) == (layer.__name__, [])
        assert 0 <= int(count) <= len(layer.__all__)
        assert int(count) or layer in (toolgym.rollout.runner.ray, toolgym.rollout.tokens)  # these are for their extra


@layers
def test_dir_lists_every_public_name(layer):
    assert set(layer.__all__) <= set(dir(layer))


@layers
def test_an_unknown_name_is_an_attribute_error(layer):
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = layer.no_such_name


@layers
def test_each_public_name_comes_from_where_type_checkers_see_it(layer):
    seen = {
        alias.asname: node.module
        for node in ast.walk(ast.parse(Path(layer.__file__).read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is not None
    }
    assert set(layer.__all__) <= set(seen) <= set(dir(layer))
    for name, home in seen.items():
        try:
            assert getattr(layer, name) is getattr(importlib.import_module(home), name)
        except MissingExtraError:
            continue  # says itself what to install
