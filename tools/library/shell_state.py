r"""The state of a shell: `ShellState`, and the script that runs one command and reports the state after it.

Each call of `BashTool` is a bash process of its own. When it ends, it prints its state (folder, variables, functions,
aliases, traps, options) to its standard error, and the host sends the state with the next command. A command's own
output, errors included, goes to standard output, and bash keeps the other pipe to itself while the command runs. So
nothing of the state lies in a file, a variable, a function or a trap that the command could see or replace.

The part that prints the state (`_save`) has to work whatever the command did to the shell:

- It runs in a subshell, which may change anything without a trace in the shell.
- An assignment enters POSIX mode, in which `exec`, `export`, `set`, `trap` and `unset` are never functions. It also
  holds the exit code and the options, because the following commands change them.
- Its words are quoted, so they are not aliases.

The commands that restore a state run in an order in which none of them can meet a function of the same name.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from dataclasses import dataclass

_MARK = "\0shell state\0"
_GONE = "\0folder gone\0"
_JOBS = "\0shell jobs\0"

_NOT_KEPT = "POSIXLY_CORRECT PWD RANDOM SRANDOM EPOCHSECONDS EPOCHREALTIME BASHPID LINENO DIRSTACK GROUPS BASH_CMDS"
"""Variables that each shell has for itself, or that are stored in another way."""


_SAVED_FD = 13
"""Descriptor under which bash keeps the report's pipe while the redirections of the command hold: the fourth that bash
saves in `SCRIPT`, from 10 on."""

_DECLARE_GLOBALS = (
    "case ${#FUNCNAME[@]} in "
    "0) \\builtin declare -p;; "
    '*) __shell_pop() { \\builtin declare -g "$1"; while \\builtin printf "\\2" && \\builtin declare -p "$1"; '
    'do if \\builtin test -R "$1" || ! \\builtin unset -v "$1"; then \\break; fi; done; }; '
    "\\builtin compgen -v | while IFS= \\builtin read -r POSIXLY_CORRECT; "
    "do case $POSIXLY_CORRECT in _ | PIPESTATUS) ;; "
    '*) \\builtin printf "\\1"; __shell_pop "$POSIXLY_CORRECT";; esac; done;; esac'
)
"""Prints also the variables that local variables of functions hide. A variable is printed and unset until it is gone,
because that reveals the variable that a local one hides. `declare -g` creates an empty one where there is none."""


_FACTS_OF = "$? {} $SHELLOPTS $BASHOPTS"


def _save(ended_by: str) -> str:
    """Return the commands that print the state to standard error. In a trap, they keep `$?`.

    Args:
        ended_by: `end` after a command, where POSIXLY_CORRECT holds the facts, or `exit` in a trap of `EXIT`. Bash runs
            such a trap wherever the shell ends, maybe in a function with local variables, and with the redirections of
            the command.
    """
    facts, pipe, declare = "$POSIXLY_CORRECT", "", "\\builtin declare -p"
    if ended_by == "exit":
        facts = _FACTS_OF.format(ended_by)
        pipe = f'\\builtin printf "" >&{_SAVED_FD} && \\exec 3>&{_SAVED_FD}; '
        declare = _DECLARE_GLOBALS
    return (
        f'( POSIXLY_CORRECT="{facts}"; \\set +efuvx; {pipe}\\exec >/dev/null; '
        '\\export -f builtin && POSIXLY_CORRECT="$POSIXLY_CORRECT builtin"; \\unset -f builtin; '
        '\\builtin printf "\\0shell state\\0%s\\0%s\\0" "$POSIXLY_CORRECT" "$PWD" >&3; '
        '\\builtin printf " %q" "$#" "$@" >&3; \\builtin printf "\\0" >&3; \\trap >&3; \\trap - DEBUG ERR; '
        '\\builtin set -- "${POSIXLY_CORRECT%% *}"; '
        f"\\builtin unset -v {_NOT_KEPT}; "
        '{ \\builtin printf "\\0"; \\builtin enable -n; '
        "\\builtin enable printf declare dirs alias umask ulimit exit compgen read test unset; "
        '\\builtin printf "\\0"; \\builtin declare -f; \\builtin declare -F; '
        '\\builtin printf "\\0"; \\builtin alias -p; \\builtin umask -p; '
        '\\builtin printf "\\0"; \\builtin dirs -l -p; '
        '\\builtin printf "\\0"; \\builtin ulimit -Sa; \\builtin printf "\\0"; \\builtin ulimit -Ha; '
        f'\\builtin printf "\\0"; {declare}; '
        '\\builtin printf "\\0"; } >&3; \\builtin exit "$1" ) 3>&2 2>/dev/null'
    )


_SECTIONS, _FACTS = 11, 4

_READ = (
    '"$( { IFS= \\builtin read -r size; IFS= LC_ALL=C \\builtin read -r -N "$size" text; '
    '\\builtin printf %s "$text" >&4; } 4>&1 >/dev/null )"'
)
"""A text on standard input after its size in bytes. Traps may print meanwhile."""

SCRIPT = (
    "printf '\\0' >&2; unset -v BASH_EXECUTION_STRING; "
    f"eval {_READ} 3>&2 >/dev/null 2>&1; "
    f"{{ \\builtin eval {_READ} </dev/null >&3 2>&1 3>&-; "
    f'POSIXLY_CORRECT="{_FACTS_OF.format("end")}"; \\set +efuvx; '
    "\\builtin printf '\\0shell jobs\\0' >&2; \\builtin jobs -lr >&2; "
    f"{_save('end')}; "
    '\\trap - EXIT; \\exit "${POSIXLY_CORRECT%% *}"; } 3>&1 >&2'
)
"""Runs what `shell_input` returns, from standard input."""

_DEFAULT_ON = frozenset({"braceexpand", "hashall", "interactive-comments"})

_FOR_ONE_COMMAND = frozenset({"errexit", "noexec", "onecmd", "privileged", "history", "histexpand", "emacs", "vi"})
"""Options that last for one command. The last four belong to shells with a terminal."""

_LAST = frozenset({"posix", "xtrace"})
"""Options that would change how the state is restored."""

_QUOTED = r"(?:'[^']*'|\\')*"
_EXIT_TRAP = re.compile(rf"trap -- ({_QUOTED}|\S+) EXIT\n")
_SIGNAL_TRAP = re.compile(
    r"""\btrap\s+(?:--\s+)?(?:'[^']*'|"[^"]*"|[\w:-]+)"""
    r"(?:\s+(?:SIG)?(?:HUP|INT|QUIT|PIPE|ALRM|TERM|USR1|USR2|CHLD|WINCH))+(?=\s*(?:[;&|)}\n]|$))"
)
"""A command that sets traps of signals only, so it may run while the trap of `EXIT` is the one that reports."""

_LIMIT = re.compile(r"\(.*-(\w)\) (\w+)$", re.MULTILINE)
_RUNNING_JOB = re.compile(r"^\[\d+\][ +-]+(\d+) Running +(.+)$", re.MULTILINE)
_LOCAL_ONLY = re.compile(r"declare -- \w+\n")
_DECLARED = re.compile(r"^declare -\S+ (\w+)", re.MULTILINE)


@dataclass(frozen=True)
class ShellState:
    """The state that the shell of one call leaves to the shell of the next.

    Attributes:
        environment: names of the variables that every shell of the session starts with.
        folder: path of the working folder; before the first command, relative to the session's folder.
        begun: whether a command ran. If not, all further attributes are empty.
        arguments: the positional parameters, quoted for a shell.
        exit_trap: the command of the trap of `EXIT`, quoted for a shell. Empty if there is none.
        traps: commands that set the other traps.
        options: names of the options of `set` that are on.
        shell_options: names of the options of `shopt` that are on.
        disabled: commands that disable builtins.
        functions, aliases, variables: commands that define them.
        folders: the stack of `pushd`, the latest first, without the working folder.
        first_limits: the soft and the hard limits of `ulimit` that every shell of the session starts with, by option.
        limits: those of them that commands have changed.
    """

    environment: frozenset[str]
    folder: str
    begun: bool = False
    arguments: str = ""
    exit_trap: str = ""
    traps: str = ""
    options: frozenset[str] = frozenset()
    shell_options: frozenset[str] = frozenset()
    disabled: str = ""
    functions: str = ""
    aliases: str = ""
    variables: str = ""
    folders: tuple[str, ...] = ()
    first_limits: frozenset[tuple[str, str]] = frozenset()
    limits: frozenset[tuple[str, str]] = frozenset()

    def restore(self, *, looks_at_traps: bool) -> str:
        """Return the commands that bring a new shell into this state.

        Args:
            looks_at_traps: whether the command may list or set traps. If not, the trap of `EXIT` also reports the
                state, for commands that end the shell, as `exit` does.
        """
        trap = self.exit_trap if looks_at_traps else _reporting(self.exit_trap)
        exit_trap = f"trap -- {trap} EXIT" if trap else ""
        if not self.begun:
            facts = "{ compgen -e; printf '\\0'; ulimit -Sa; printf '\\0'; ulimit -Ha; } >&3"
            return f"{facts}; cd -- {_quote(self.folder)}; shopt -s expand_aliases; {exit_trap}"
        removed = self.environment - set(_DECLARED.findall(self.variables)) - {"PWD", "OLDPWD", "_"}
        before_functions = [
            _enter(self.folder),
            *(f"pushd -n -- {_quote(folder)}" for folder in reversed(self.folders)),
            f"shopt -u ${{BASHOPTS//:/ }}; shopt -s {' '.join(sorted(self.shell_options - {'expand_aliases'}))}",
            f"unset -v {' '.join(sorted(removed))}" if removed else "",
            self.variables,
            f"set --{self.arguments}",
            self.aliases,
            self.disabled,
            *(f"set -o {name}" for name in sorted(self.options - _FOR_ONE_COMMAND - _DEFAULT_ON - _LAST)),
            *(f"set +o {name}" for name in sorted(_DEFAULT_ON - self.options)),
            exit_trap,
            self.traps,
        ]
        after_functions = [
            "\\builtin shopt -s expand_aliases" if "expand_aliases" in self.shell_options else "",
            *(f"\\builtin ulimit {option} {value}" for option, value in sorted(self.limits, reverse=True)),
            *(f"\\builtin set -o {name}" for name in sorted(_LAST & self.options)),
        ]
        parts = [*before_functions, self.functions, *after_functions]
        return "\n".join(part for part in parts if part)


@dataclass(frozen=True)
class ShellReport:
    """The report that a shell printed about itself at its end.

    Attributes:
        started: whether the shell began at all.
        state: its state. None if it ended without a report, as by `exec` or a signal, or if the report is incomplete.
        folder_gone: whether the folder of the state before could not be entered.
        lost: functions that are defined, but not in the state.
        jobs: process ids and commands of what runs in the background.
    """

    started: bool
    state: ShellState | None = None
    folder_gone: bool = False
    lost: tuple[str, ...] = ()
    jobs: tuple[tuple[str, str], ...] = ()


def shell_input(state: ShellState, command: str) -> bytes:
    """Return the standard input of `SCRIPT`: the commands that restore a state, and a command."""
    looks_at_traps = "trap" in _SIGNAL_TRAP.sub("", command)
    texts = [_bytes(state.restore(looks_at_traps=looks_at_traps)), _bytes(command)]
    return b"".join(b"%d\n%s" % (len(text), text) for text in texts)


def read_report(data: bytes, before: ShellState, *, cut: bool) -> ShellReport:
    """Read what `SCRIPT` printed to standard error.

    Args:
        data: the output as it came.
        before: the state that the shell began with.
        cut: whether the middle of the output is missing.
    """
    text = data.decode("utf-8", "surrogateescape")
    if "\0" not in text:
        return ShellReport(started=False)
    beginning, mark, report = text.rpartition(_MARK)
    beginning, _, jobs = beginning.partition(_JOBS)
    sections = report.split("\0")
    gone = _GONE in beginning
    status = sections[0].split(" ")
    if not mark or cut or len(sections) != _SECTIONS + 1 or len(status) < _FACTS:  # a program may have written to it
        return ShellReport(started=True, folder_gone=gone)
    _, folder, arguments, traps, disabled, functions, aliases, folders, soft, hard, variables, _ = sections
    _, ended_by, options, shell_options, *lost = status
    environment, first_limits, limits = before.environment, before.first_limits, _read_limits(soft, hard)
    if not before.begun:
        names, *first = beginning.strip("\0").split("\0")
        environment = frozenset(names.split("\n")) - {""}
        first_limits = _read_limits(*first)
    exit_trap, traps = _split_traps(traps, before.exit_trap, fired=ended_by == "exit")
    state = ShellState(
        environment=environment,
        folder=folder or before.folder,
        begun=True,
        arguments="".join(arguments.lstrip().partition(" ")[1:]),
        exit_trap=exit_trap,
        traps=traps,
        options=frozenset(options.split(":")) - {""},
        shell_options=frozenset(shell_options.split(":")) - {""},
        disabled=disabled,
        functions=functions,
        aliases=aliases,
        variables=_globals(variables),
        folders=tuple(folders.splitlines()[1:]),
        first_limits=first_limits,
        limits=limits - first_limits,
    )
    return ShellReport(
        started=True, state=state, folder_gone=gone, lost=tuple(lost), jobs=tuple(_RUNNING_JOB.findall(jobs))
    )


def _read_limits(*listings: str) -> frozenset[tuple[str, str]]:
    """Return the options of `ulimit` with their values, from listings of the soft and of the hard limits."""
    return frozenset(
        (f"-{kind}{option}", value)
        for kind, listing in zip("SH", listings, strict=False)
        for option, value in _LIMIT.findall(listing)
        if option != "p"  # the size of pipes cannot be set
    )


def _globals(variables: str) -> str:
    """Return the declarations of global variables from those of `_DECLARE_GLOBALS`."""
    if "\1" not in variables:
        return variables
    shown = [part.split("\2")[1:] for part in variables.split("\1")[1:]]
    last = [next((text for text in reversed(texts) if text), "") for texts in shown]
    return "".join(text for text in last if not _LOCAL_ONLY.fullmatch(text))


def _split_traps(traps: str, before: str, *, fired: bool) -> tuple[str, str]:
    """Return the quoted command of the `EXIT` trap, and the commands that set the other traps."""
    match = _EXIT_TRAP.match(traps)
    if match is None:
        return "", traps
    command = before if "shell state" in match[1] else match[1]
    return "" if fired else command, traps[match.end() :]


def _reporting(command: str) -> str:
    """Return the quoted text of a trap that prints the state and then runs a quoted command."""
    report = _quote(_save("exit"))
    return f"{report}$'\\n{{ '{command}$'\\n}} 2>&1'" if command else report


def _enter(folder: str) -> str:
    """Return the commands that enter a folder, or the nearest one above that exists."""
    above = itertools.takewhile(lambda path: path != "/", _parents(folder))
    tries = " || ".join(f"cd -- {_quote(path)}" for path in [*above, "/"])
    return f"cd -- {_quote(folder)} || {{ printf '\\0folder gone\\0' >&3; {tries}; }}"


def _parents(folder: str) -> list[str]:
    parents = []
    while folder not in ("/", "", "//"):
        folder = posixpath.dirname(folder)
        parents.append(folder)
    return parents


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _bytes(text: str) -> bytes:
    """Encode what came from a shell, or from a model, which may have written half a surrogate pair."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
