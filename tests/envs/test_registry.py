from __future__ import annotations

import sys
import warnings

import gymnasium
import pytest

import toolgym
from toolgym.envs.library.code_interpreter import CodeInterpreterEnv
from toolgym.tools.errors import ConfigError, UnknownNameError


def test_make_gives_the_async_env():
    env = toolgym.make("CodeInterpreter-v0", max_turns=3)
    assert isinstance(env, CodeInterpreterEnv)
    assert env.max_turns == 3


def test_a_typo_in_an_id_names_the_right_one():
    with pytest.raises(UnknownNameError, match=r"'CodeInterpeter-v0', did you mean 'CodeInterpreter-v0'\?"):
        toolgym.make("CodeInterpeter-v0")
    with pytest.raises(UnknownNameError, match=r"did you mean 'CodeInterpreter-v0'\?"):
        toolgym.make("CodeInterpreter")
    with pytest.raises(UnknownNameError, match=r"Known ids: .*CodeInterpreter-v0"):
        toolgym.make("zzz")


def test_an_id_that_is_no_text_is_refused():
    with pytest.raises(ConfigError, match="an env id is a text"):
        toolgym.make(3)


def test_the_module_form_imports_the_module_first(registry, tmp_path, monkeypatch):
    (tmp_path / "lab_of_mine.py").write_text(
        "import toolgym\nfrom toolgym.envs import CodeInterpreterEnv\n"
        "toolgym.register('Lab-v0', 'lab_of_mine:CodeInterpreterEnv', kwargs={'max_turns': 2})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert toolgym.make("lab_of_mine:Lab-v0").max_turns == 2
    env = gymnasium.make("lab_of_mine:Lab-v0", max_turns=5)
    assert env.unwrapped.base_env.max_turns == 5
    env.close()
    sys.modules.pop("lab_of_mine")


def test_a_module_that_is_absent_or_lacks_a_dependency(registry, tmp_path, monkeypatch):
    with pytest.raises(UnknownNameError, match="no module 'no_such_lab'"):
        toolgym.make("no_such_lab:Lab-v0")
    (tmp_path / "broken_lab.py").write_text("import a_dependency_that_is_absent\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_dependency_that_is_absent") as caught:
        toolgym.make("broken_lab:Lab-v0")
    assert not isinstance(caught.value, UnknownNameError)


@pytest.mark.parametrize("id", [":MyEnv-v0", ".here:MyEnv-v0", "a b:MyEnv-v0"])
def test_what_is_no_name_of_a_module_is_refused(id):
    with pytest.raises(ConfigError, match="not the name of a module"):
        toolgym.make(id)


def test_kwargs_of_the_spec_are_defaults(registry, toy_env):
    registry.register("Toy-v0", toy_env, kwargs={"max_turns": 7, "sleep": 0.1})
    env = registry.make("Toy-v0", max_turns=9)
    assert (env.max_turns, env.sleep) == (9, 0.1)


def test_the_same_twice_is_fine_and_something_else_is_not(registry, toy_env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = registry.register("Toy-v0", toy_env, kwargs={"max_turns": 1})
        assert registry.register("Toy-v0", toy_env, kwargs={"max_turns": 1}) is first
        with pytest.raises(ConfigError, match="replace=True"):
            registry.register("Toy-v0", "toolgym.envs.library.code_interpreter:CodeInterpreterEnv")
        with pytest.raises(ConfigError, match="replace=True"):
            registry.register("Toy-v0", toy_env)
        registry.register("Toy-v0", toy_env, kwargs={"max_turns": 2}, replace=True)
        assert registry.make("Toy-v0").max_turns == 2
        env = gymnasium.make("Toy-v0")
        assert env.unwrapped.base_env.max_turns == 2
        env.close()


@pytest.mark.parametrize("id", ["", "Toy v0", "a:Toy-v0", "Toy-v0/", 3])
def test_a_malformed_id_is_refused_and_leaves_no_trace(registry, toy_env, id):
    before = dict(registry.registered())
    with pytest.raises(ConfigError):
        registry.register(id, toy_env)
    assert dict(registry.registered()) == before


def test_a_name_has_versions_or_none(registry, toy_env):
    registry.register("lab/Toy-v0", toy_env)
    registry.register("lab/Toy-v1", toy_env)
    registry.register("Toy", toy_env)
    with pytest.raises(ConfigError, match="'lab/Toy-v0' and 'lab/Toy' cannot both exist"):
        registry.register("lab/Toy", toy_env)
    with pytest.raises(ConfigError, match="'Toy' and 'Toy-v2' cannot both exist"):
        registry.register("Toy-v2", toy_env)


@pytest.mark.parametrize("entry_point", ["", "module", "module:", ":name", "a b:c", 3, None])
def test_a_malformed_entry_point_is_refused(registry, entry_point):
    with pytest.raises(ConfigError, match="package.module:name"):
        registry.register("Toy-v0", entry_point)


def test_an_entry_point_that_leads_nowhere(registry):
    registry.register("Lost-v0", "toolgym.envs.library.code_interpreter:CodeInterpeterEnv")
    with pytest.raises(UnknownNameError, match="did you mean 'CodeInterpreterEnv'"):
        registry.make("Lost-v0")
    registry.register("Lost-v1", "toolgym.envs.nowhere:Env")
    with pytest.raises(UnknownNameError, match=r"no module 'toolgym\.envs\.nowhere'"):
        registry.make("Lost-v1")
    registry.register("Wrong-v0", "toolgym.envs.registry:SYNC_ENTRY_POINT")
    with pytest.raises(ConfigError, match="not callable"):
        registry.make("Wrong-v0")
    registry.register("Wrong-v1", dict)
    with pytest.raises(ConfigError, match="must give a toolgym BaseEnv"):
        registry.make("Wrong-v1")


def test_registered_is_a_view_that_cannot_be_altered(registry):
    known = registry.registered()
    assert known["CodeInterpreter-v0"].description
    with pytest.raises(TypeError):
        known["x"] = None


def test_a_large_family_is_one_of_the_known_ids():
    with pytest.raises(UnknownNameError, match=r"Known ids: .*ReasoningGym/\.\.\. \(106\)") as caught:
        toolgym.make("zzz")
    assert "ReasoningGym/gcd-v0" not in str(caught.value)
    with pytest.raises(UnknownNameError, match=r"did you mean 'ReasoningGym/gcd-v0'"):
        toolgym.make("ReasoningGym/gdc-v0")
