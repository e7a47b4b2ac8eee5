"""What template processes load before they fork: random generators, libraries that fail, caches."""

from __future__ import annotations

import logging
import os
import random
import sys
import types

import numpy
import pytest

from toolgym.tools.errors import ConfigError, SandboxUnavailableError
from toolgym.tools.sandbox import LocalSandbox
from toolgym.tools.sandbox.local import Preload
from toolgym.tools.sandbox.local.child import generators
from toolgym.tools.sandbox.local.zygote import loading

BROKEN = "multiprocessing.popen_spawn_win32"
"""A module that fails after its package was loaded."""

LOADED = "import sys\nprint([name for name in sys.modules if name.startswith('multiprocessing')])"


def test_generators_with_a_random_seed_are_renewed(monkeypatch):
    monkeypatch.setattr(generators, "_pythons", [])
    monkeypatch.setattr(generators, "_numpys", [])
    with generators.watch_seeds() as seeded:
        chosen, free = random.Random(7), random.Random()
    bits = [numpy.random.PCG64(), numpy.random.MT19937(), numpy.random.Philox()]
    holders = {"nested": [numpy.random.Generator(bits[0]), numpy.random.RandomState(bits[1]), bits[2]]}
    fixed = [numpy.random.PCG64(3), numpy.random.PCG64([1, 2]), numpy.random.RandomState(3)._bit_generator]
    states = [free.getstate, random.getstate, lambda: numpy.random.get_state()[1].tolist()]
    states += [lambda generator=generator: repr(generator.state) for generator in bits]
    kept = [chosen.getstate, *(lambda generator=generator: repr(generator.state) for generator in fixed)]
    before, before_kept = [state() for state in states], [state() for state in kept]
    generators.remember(seeded)
    generators.renew()
    assert all(state() != old for state, old in zip(states, before, strict=True))
    assert [state() for state in kept] == before_kept
    assert holders


def test_a_seed_that_is_taken_back_is_no_seed():
    with generators.watch_seeds() as seeded:
        generator = random.Random(7)
        generator.seed()
    assert generator not in seeded
    assert random.Random(3).random() == random.Random(3).random()


@pytest.mark.parametrize(
    ("code", "reason"),
    [("raise ValueError('no')", "ValueError: no"), ("raise SystemExit(3)", "SystemExit: 3"), ("", "started a thread")],
)
def test_a_library_that_cannot_be_loaded_is_named(monkeypatch, code, reason):
    monkeypatch.setitem(sys.modules, "broken_library", types.ModuleType("broken_library"))
    monkeypatch.setattr(loading, "_count_threads", lambda: 2)
    with pytest.raises(loading.LoadError) as failure:
        loading._load("broken_library", code)
    assert failure.value.library == "broken_library"
    assert reason in failure.value.reason


async def test_a_library_that_fails_leaves_nothing_behind_and_the_others_draw_numbers_of_their_own(caplog):
    code = f"import sympy\n{LOADED}\nprint('sympy' in sys.modules)\nprint(sympy.randprime(1, 10**12))"
    async with LocalSandbox(preload=["fractions", BROKEN, "sympy"], templates=1, warm=0) as sandbox:
        printed = [(await sandbox.run(code)).stdout for _ in range(2)]
        async with await sandbox.session() as session:
            printed.append((await session.run_cell(code)).stdout)
            names = await session.run_cell("print([name for name in globals() if 'shell' in name])\nglobals().clear()")
            assert names.stdout == "[]\n"
            assert (await session.run_cell("!echo still here")).stdout == "still here\n"
    assert all(text.startswith("[]\nTrue\n") for text in printed)
    assert len(set(printed)) == 3
    assert f"cannot import, so programs go without: {BROKEN} (ModuleNotFoundError" in caplog.text


@pytest.mark.parametrize("modules", [[BROKEN], ["no_such_module"]])
async def test_a_preload_that_must_not_fail(modules):
    sandbox = LocalSandbox(preload=Preload(modules, on_error="fail"), templates=1)
    with pytest.raises(SandboxUnavailableError, match=f"preload.*{modules[0]}"):
        await sandbox.start(full=True)
    await sandbox.close()


async def test_a_preload_that_fails_in_silence(caplog):
    with caplog.at_level(logging.INFO, "toolgym.tools.sandbox"):
        async with LocalSandbox(preload=Preload([BROKEN, "no_such_module"], on_error="ignore")) as sandbox:
            await sandbox.start(full=True)
    assert "so programs go without" not in caplog.text
    assert "not installed" not in caplog.text


def test_a_preload_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match="on_error must be 'fail', 'warn' or 'ignore', got 'never'"):
        Preload([], on_error="never")
    with pytest.raises(ConfigError, match="preload must be a list of modules, got 'numpy'"):
        LocalSandbox(preload="numpy")


def test_libraries_have_a_folder_for_their_caches_while_they_are_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/nowhere")
    with loading.writable_folder(namespaces=False, work=str(tmp_path)):
        folder = os.environ["HOME"]
        assert os.access(folder, os.W_OK)
        assert os.environ["MPLCONFIGDIR"].startswith(folder)
    assert os.environ["HOME"] == "/nowhere"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
async def test_the_first_plot_of_a_session_builds_no_list_of_fonts():
    pytest.importorskip("matplotlib")
    code = (
        "import os, sys\nprint('matplotlib.pyplot' in sys.modules)\nimport matplotlib.pyplot as plots\n"
        "plots.title('hello')\nplots.savefig('plot.png')\nprint(sorted(os.listdir('.')))"
    )
    async with LocalSandbox(templates=1) as sandbox, await sandbox.session() as session:
        cell = await session.run_cell(code, timeout=60)
    assert cell.stdout == "True\n['plot.png']\n"
