"""The games of TextArena that are ids of toolgym, known without importing it."""

from __future__ import annotations

_NAMES = """
    2048-v0 2048-v0-ultra-easy 2048-v0-mega-easy 2048-v0-super-easy 2048-v0-very-easy 2048-v0-easy 2048-v0-hard
    2048-v0-very-hard 2048-v0-extreme 2048-v0-3x3 2048-v0-5x5 2048-v0-6x6 2048-v0-8x8 2048-v0-10x10 Bandit-v0
    Bandit-v0-hard Blackjack-v0 Blackjack-v0-long Crosswords-v0 Crosswords-v0-hardcore FifteenPuzzle-v0
    FrozenLake-v0 FrozenLake-v0-random FrozenLake-v0-hardcore GuessTheNumber-v0 GuessTheNumber-v0-hardcore
    LightsOut-v0 LogicPuzzle-v0 LogicPuzzle-v0-hard Mastermind-v0 Mastermind-v0-hard Mastermind-v0-extreme
    Minesweeper-v0 Minesweeper-v0-small Minesweeper-v0-medium Minesweeper-v0-hard PegJump-v0 RushHour-v0
    Secretary-v0 Secretary-v0-long Set-v0 Sokoban-v0 Sudoku-v0 Sudoku-v0-very-easy Sudoku-v0-easy Sudoku-v0-medium
    Sudoku-v0-hard TowerOfHanoi-v0 TowerOfHanoi-v0-medium TowerOfHanoi-v0-hard TowerOfHanoi-v0-hardcore
    TowerOfHanoi-v0-extreme
"""

GAMES = tuple(_NAMES.split())
"""TextArena's own ids of games for one player that begin within seconds and without a download (TextArena 0.7.4).

Left out are Sokoban-v0-medium, which takes 20 seconds to begin; Countdown, Cryptarithm, Slitherlink and ThreeCardMonte,
whose reward for a malformed action is a text; games for several players, with a key or with word lists of nltk; and
those whose files are missing or do not compile.
"""


def env_id(game: str) -> str:
    """The id of a game, whose version comes last: `TextArena/2048-hard-v0` for `2048-v0-hard`."""
    name, _, variant = game.partition("-v0")
    return f"TextArena/{name}{variant}-v0"


NAMESPACES = {"TextArena": "A game of TextArena for one player."}

IDS = {
    env_id(game): ("toolgym.envs.families.textarena.env:textarena_env", f"Play TextArena's {game}.", {"game": game})
    for game in GAMES
}
