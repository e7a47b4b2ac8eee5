"""What can be said of `TextArena/NAME-v0` without TextArena; what the games do is in `real/test_textarena_games.py`."""

from __future__ import annotations

import sys

import pytest

import toolgym
from toolgym.envs.families.textarena.ids import GAMES, PLAYERS, env_id
from toolgym.envs.ids import OWN_ENVS
from toolgym.tools.errors import MissingExtraError, UnknownNameError


def test_each_game_has_an_id_of_its_own():
    ids = {env_id(game) for game in (*GAMES, *PLAYERS)}
    assert (len(GAMES), len(PLAYERS), len(ids)) == (52, 115, 167)
    assert ids == {id for id in OWN_ENVS if id.startswith("TextArena/")}
    assert env_id("2048-v0-hard") == "TextArena/2048-hard-v0"


def test_an_unknown_game_names_the_nearest_one():
    with pytest.raises(UnknownNameError, match="did you mean 'TextArena/Sudoku-v0'"):
        toolgym.make("TextArena/Sudokku-v0")
    with pytest.raises(UnknownNameError, match="did you mean 'Sudoku-v0'"):
        toolgym.make("TextArena/Sudoku-v0", game="Sudokku-v0")
    with pytest.raises(UnknownNameError, match="did you mean 'TicTacToe-v0'"):
        toolgym.make("TextArena/TicTacToe-v0", game="TickTackToe-v0")


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(MissingExtraError, match="textarena"):
        toolgym.make("TextArena/Sudoku-v0")
