"""What a user reads who has not installed `bfcl-eval`. What the envs do is in `real/test_bfcl.py`."""

from __future__ import annotations

import sys

import pytest

import toolgym
from toolgym.tools.errors import MissingExtraError, UnknownNameError


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    with pytest.raises(MissingExtraError, match=r"pip install --no-deps bfcl-eval==[\d.]+\. Or give wheel=PATH"):
        toolgym.make("BFCL/multi_turn_base-v0")


def test_a_wheel_that_is_not_there_is_an_error(tmp_path):
    (tmp_path / "bfcl_eval-1.whl").touch()
    with pytest.raises(UnknownNameError, match=r"did you mean 'bfcl_eval-1\.whl'"):
        toolgym.make("BFCL/multi_turn_base-v0", wheel=tmp_path / "bfcl_eval-2.whl")


def test_an_unknown_set_names_the_nearest_one():
    with pytest.raises(UnknownNameError, match="did you mean 'multi_turn_base'"):
        toolgym.make("BFCL/multi_turn_base-v0", category="multi_turn_basic")
