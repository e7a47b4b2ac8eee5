"""Every abuse, at every isolation level that this machine offers, as every kind of user that it offers.

The programs are in `abuse/`; a process of its own runs them all for one level (see `abuse/runner.py`), inside a
limiting control group, and each verdict is one test here. A program that need not be stopped at a level, and is not, is
an expected failure: `abuse/report.py` prints what is stopped where.

Choose with TOOLGYM_ABUSE, for example TOOLGYM_ABUSE=root:namespaces,user:landlock.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.tools.sandbox.abuse.catalog import PROGRAMS
from tests.tools.sandbox.abuse.program import LEVELS
from tests.tools.sandbox.abuse.surroundings import SURROUNDINGS, why_not

RUNNER = Path(__file__).parent / "abuse" / "runner.py"
PLACES = (
    *(f"{surroundings}:{level}" for surroundings in SURROUNDINGS for level in LEVELS),
    *(f"{surroundings}:namespaces+image" for surroundings in ("root", "user", "masked-proc")),
)
"""Surroundings and level; with `+image` in sessions whose root is an image, which only that level has."""
IMPOSSIBLE = frozenset(
    {"user:uid", "masked-proc:uid", "docker-user:uid", "docker-root:namespaces", "docker-user:namespaces"}
)
"""A user cannot become others, and Docker's rules forbid namespaces: there the level must refuse, see below."""
MINUTES = 25
"""What a runner gets: the first test of a place waits for all of its programs."""

pytestmark = [pytest.mark.abuse, pytest.mark.timeout(2 * MINUTES * 60)]  # one test has two runs

LIFELINE = ("odd/exits_at_once", "time/sleep", "secrets/environment", "network/tcp_loopback", "works/threads")
"""A few programs for a quick look."""


@dataclass
class Report:
    """What one run of the runner reported."""

    header: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, dict[str, object]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    complete: bool = False
    exit: int | None = None
    trouble: str = ""


@functools.cache
def report(place: str, *only: str) -> Report:
    surroundings, _, level = place.partition(":")
    if reason := why_not(surroundings):
        return Report({"unavailable": reason})
    command = [sys.executable, str(RUNNER), "--in", surroundings]
    level, _, image = level.partition("+")
    command += ["--sandbox", "process"] if level == "process" else ["--level", level]
    command += ["--image"] if image else []
    if only:
        command += ["--only", *only]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=MINUTES * 60, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        return Report(trouble=f"the runner did not end in {MINUTES} minutes: {error.stdout!r}"[-2000:])
    made = Report(exit=done.returncode, trouble=f"exit {done.returncode}: {done.stderr[-2000:]}")
    for line in done.stdout.splitlines():
        said = json.loads(line)
        if "skipped" in said:
            made.skipped[said["name"]] = said["skipped"]
        elif "name" in said:
            made.verdicts[said["name"]] = said
        elif "end" in said:
            made.complete = True
        else:
            made.header = said
    return made


def places() -> tuple[str, ...]:
    wanted = os.environ.get("TOOLGYM_ABUSE")
    return tuple(wanted.split(",")) if wanted else tuple(place for place in PLACES if place not in IMPOSSIBLE)


def level_of(place: str) -> str:
    return place.partition(":")[2].partition("+")[0]


def each(places):
    """Parameters that keep the tests of a place in one process of xdist, so that the runner runs once for each."""
    return pytest.mark.parametrize("place", [pytest.param(one, marks=pytest.mark.xdist_group(one)) for one in places])


@each(places())
def test_the_level_is_what_was_asked_for_and_the_sandbox_closes(place, record_property):
    seen = report(place)
    if "unavailable" in seen.header:
        pytest.skip(seen.header["unavailable"])
    assert seen.complete, seen.trouble
    assert seen.exit == 0, f"closing the sandbox failed; {seen.trouble}"
    assert seen.header["level"] == level_of(place)
    assert seen.header["works"], seen.header
    record_property("isolation", seen.header["isolation"])
    record_property("cage", seen.header["cage"])


_STAYS_ROOT = "started by root, this level stays root, without capabilities"
KNOWN = {
    ("root:landlock", "escapes/privileges"): _STAYS_ROOT,
    ("docker-root:landlock", "escapes/privileges"): _STAYS_ROOT,
}
"""Holes that are known and named (in `Isolation.missing` and docs/sandbox.md), by place and program."""


@pytest.mark.parametrize("name", PROGRAMS)
@each(places())
def test_abuse(place, name):
    seen = report(place)
    if "unavailable" in seen.header:
        pytest.skip(seen.header["unavailable"])
    verdict = seen.verdicts.get(name)
    if verdict is None:
        if seen.complete:
            pytest.skip(seen.skipped.get(name, "it is for another root, or a module that it needs is not installed"))
        pytest.fail(f"no verdict; {seen.trouble}")
    if not verdict["held"]:
        if (place, name) in KNOWN:
            pytest.xfail(f"{KNOWN[place, name]}: {verdict['said']}")
        if level_of(place) not in PROGRAMS[name].must:
            pytest.xfail(str(verdict["said"]))
        pytest.fail(str(verdict["said"]))


@each(sorted(IMPOSSIBLE))
def test_a_level_that_cannot_be_is_refused(place):
    """No silent downgrade: a request for more than there is gets an error that says so."""
    seen = report(place, *LIFELINE)
    if reason := why_not(place.partition(":")[0]):
        pytest.skip(reason)
    assert "unavailable" in seen.header, seen.header or seen.trouble
    assert place.partition(":")[2] in seen.header["unavailable"]


def test_the_programs_can_fail():
    """Without isolation each abuse that is marked so gets through: what is tested above is not a matter of course."""
    surroundings = "root" if os.geteuid() == 0 else "user"
    seen = report(f"{surroundings}:process")
    assert seen.complete, seen.trouble
    wrong = _unexpected(seen)
    if wrong:  # some need time that a busy machine did not give them beside the others: they get a second run alone
        again = report(f"{surroundings}:process", *sorted(wrong))
        assert again.complete, again.trouble
        wrong = _unexpected(again)
    assert wrong == {}
    assert sum(not verdict["held"] for verdict in seen.verdicts.values()) > 60


def _unexpected(seen: Report) -> dict[str, object]:
    """Programs that did without isolation what they are not expected to do, and what was said of them."""
    wrong: dict[str, object] = {}
    for name, verdict in seen.verdicts.items():
        expected = PROGRAMS[name].bare
        if (expected == "open" and verdict["held"]) or (expected == "held" and not verdict["held"]):
            wrong[name] = verdict["said"] or "held without any isolation"
    return wrong
