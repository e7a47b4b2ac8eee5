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
whose reward for a malformed action is a text; games with a key or with word lists of nltk; and those whose files are
missing or do not compile.
"""

_NAMES_BY_PLAYERS = {
    2: """
        Alquerque-v0 Battleship-v0 Battleship-v0-extreme Battleship-v0-large Battleship-v0-standard
        Breakthrough-v0 Breakthrough-v0-blind Breakthrough-v0-large Breakthrough-v0-long Breakthrough-v0-small
        Breakthrough-v0-tiny Briscola-v0 Chopsticks-v0 Chopsticks-v0-long Chopsticks-v0-medium ColonelBlotto-v0
        ColonelBlotto-v0-extreme ColonelBlotto-v0-large ColonelBlotto-v0-small ConnectFour-v0
        ConnectFour-v0-blind ConnectFour-v0-large Crusade-v0 GameOfPureStrategy-v0 GermanWhist-v0 Golf-v0
        Golf-v0-medium HighSociety-v0 IndianPoker-v0 IndianPoker-v0-extreme IndianPoker-v0-long
        IndianPoker-v0-medium IndianPoker-v0-short IteratedMatchingPennies-v0 IteratedPrisonersDilemma-v0
        IteratedRockPaperScissors-v0 IteratedTwoThirdsAverage-v0 IteratedUltimatumGame-v0
        IteratedUltimatumGame-v0-alternate KuhnPoker-v0 KuhnPoker-v0-extreme KuhnPoker-v0-long
        KuhnPoker-v0-medium KuhnPoker-v0-short LiarsDice-v0 LiarsDice-v0-large LiarsDice-v0-small
        LinesOfAction-v0 MemoryGame-v0 MemoryGame-v0-hard MemoryGame-v0-medium NewRecruit-v0 Nim-v0 Nim-v0-large
        Nim-v0-medium Othello-v0 Othello-v0-big Othello-v0-hard Othello-v0-huge Othello-v0-small Othello-v0-tiny
        PigDice-v0 PigDice-v0-100 PigDice-v0-150 PigDice-v0-200 PigDice-v0-250 PigDice-v0-300 PigDice-v0-350
        PigDice-v0-400 PigDice-v0-450 PigDice-v0-50 PigDice-v0-500 PigDice-v0-long PigDice-v0-short
        QuantumTicTacToe-v0 SimpleBlindAuction-v0 SimpleBlindAuction-v0-quick SimpleBlindAuction-v0-rich
        SimpleNegotiation-v0 SimpleNegotiation-v0-long SimpleNegotiation-v0-short SimpleTak-v0
        SimpleTak-v0-extreme SimpleTak-v0-large SimpleTak-v0-medium Snake-v0 Snake-v0-large Snake-v0-standard
        SpiteAndMalice-v0 Stratego-v0 Surround-v0 Surround-v0-large Surround-v0-standard Tak-v0 Tak-v0-hard
        Tak-v0-medium TicTacToe-v0 TruthAndDeception-v0 TruthAndDeception-v0-extreme TruthAndDeception-v0-long
        TwoDollar-v0 UltimateTicTacToe-v0 WildTicTacToe-v0
    """,
    3: """
        ThreePlayerGOPS-v0 ThreePlayerIPD-v0 ThreePlayerTicTacToe-v0
    """,
    4: """
        Taboo-v0 Taboo-v0-animals Taboo-v0-cars Taboo-v0-food Taboo-v0-literature Taboo-v0-long
        Taboo-v0-people Taboo-v0-tv
    """,
    6: """
        SecretMafia-v0
    """,
}

PLAYERS = {game: count for count, names in _NAMES_BY_PLAYERS.items() for game in names.split()}
"""The same of games for several, with the least number of players that each begins with. Left out are also
MarketEntryGame, Poker, PublicGoodsGame, Santorini and SettlersOfCatan, which malformed actions never end, and
Taboo-v0-full, which draws its category before it has a seed."""


def env_id(game: str) -> str:
    """The id of a game, whose version comes last: `TextArena/2048-hard-v0` for `2048-v0-hard`."""
    name, _, variant = game.partition("-v0")
    return f"TextArena/{name}{variant}-v0"


NAMESPACES = {"TextArena": "A game of TextArena, for one player or for several roles."}

_MAKER = "toolgym.envs.families.textarena.env:textarena_{}"

IDS = {env_id(game): (_MAKER.format("env"), f"Play TextArena's {game}.", {"game": game}) for game in GAMES} | {
    env_id(game): (_MAKER.format("players"), f"Play TextArena's {game}, {count} roles.", {"game": game})
    for game, count in PLAYERS.items()
}
