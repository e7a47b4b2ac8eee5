from __future__ import annotations

import importlib
import sys
import threading

import pytest

from toolgym.tools.lazy import after_import


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of the user's own, and returns its name."""

    def write(text, name="late_module"):
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if type(one).__name__ != "_Finder"])
    yield write
    sys.modules.pop("late_module", None)


def test_it_waits_until_the_module_has_run(module):
    seen = []
    name = module("value = 1")
    after_import(name, lambda found: seen.append(found.value))
    after_import(name, lambda found: seen.append(found.__name__))
    assert name not in sys.modules
    assert seen == []
    late = importlib.import_module(name)
    assert seen == [1, name]
    importlib.reload(late)
    assert seen == [1, name] * 2


def test_what_is_there_is_acted_on_at_once(module):
    name = module("")
    importlib.import_module(name)
    seen = []
    after_import(name, seen.append)
    assert seen == [sys.modules[name]]


def test_a_module_that_does_not_exist_is_still_no_module():
    seen = []
    after_import("no_such_module", seen.append)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module("no_such_module")
    assert seen == []


def test_while_another_thread_imports_it_this_one_waits(module):
    begun, go = threading.Event(), threading.Event()
    sys.late_events = begun, go
    try:
        name = module("import sys\nbegun, go = sys.late_events\nbegun.set()\nassert go.wait(60)\nvalue = 1")
        other = threading.Thread(target=importlib.import_module, args=(name,))
        other.start()
        assert begun.wait(60)
        threading.Timer(0.05, go.set).start()
        seen = []
        after_import(name, lambda found: seen.append(found.value))
        assert seen == [1]
        other.join(60)
        assert not other.is_alive()
    finally:
        go.set()
        del sys.late_events
