"""Every recorded answer of SandboxFusion against ours, field by field.

`golden/sandboxfusion.json` holds what SandboxFusion answered (see `golden/record.py`). Ours may say otherwise only
where `golden/differences.json` lists the case, the field and what ours says, with a reason; a listed difference that is
none any more is a failure too. What is never compared is told in `golden/compare.py`: seconds, the words of 422
problems, the frames of a notebook's traceback, and what SandboxFusion's notebook driver says of itself.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.tools.sandbox.server.golden.api_cases import EVALUATION
from tests.tools.sandbox.server.golden.catalog import CASES
from tests.tools.sandbox.server.golden.compare import differing
from tests.tools.sandbox.server.golden.play import ask
from toolgym.tools.sandbox.local.host.isolation import Level, choose

FOLDER = Path(__file__).parent / "golden"
RECORD = json.loads((FOLDER / "sandboxfusion.json").read_text())
VERSIONS = RECORD["head"]["versions"]
REASONS = json.loads((FOLDER / "differences.json").read_text())
DIFFERENCES = {name: listed for reason in REASONS for name, listed in reason["cases"].items()}
LIMITS = ("run_timeout", "compile_timeout", "cell_timeout", "total_timeout")
LEVEL = choose(None, None)
IN_TMP = any(prefix.startswith("/tmp/") for prefix in (sys.prefix, sys.base_prefix))
SAME_PYTHON = platform.python_version_tuple()[:2] == tuple(VERSIONS["python"].split(".")[:2])


pytestmark = pytest.mark.skipif(
    LEVEL is not Level.NAMESPACES, reason=f"compared at the level 'namespaces', and the best here is {LEVEL.value!r}"
)


def parameters():
    """The cases, those left out marked."""
    for name, case in CASES.items():
        if case in EVALUATION:
            continue
        marks = []
        if case.needs and installed(case.needs) != VERSIONS[case.needs.lower()]:
            reason = f"recorded with {case.needs} {VERSIONS[case.needs.lower()]}, here: {installed(case.needs)}"
            marks = [pytest.mark.skip(reason=reason)]
        elif case.versioned and not SAME_PYTHON:
            marks = [pytest.mark.skip(reason=f"recorded with Python {VERSIONS['python']}")]
        yield pytest.param(case, id=name, marks=marks)


def installed(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def gist(case):
    """How much of stderr is compared: between other versions of Python, only whether there is any."""
    return "some" if case.gist == "python" and not SAME_PYTHON else case.gist


def patient(case):
    """The case with ten times the time, for a busy machine, where a program may not get as far as it should."""
    if not isinstance(case.body, dict):
        return case
    limits = {name: case.body[name] for name in LIMITS if isinstance(case.body.get(name), int | float)}
    longer = {
        name: max(seconds, min(10 * seconds, 120)) for name, seconds in limits.items() if not isinstance(seconds, bool)
    }
    return dataclasses.replace(case, body={**case.body, **longer})


@pytest.fixture(scope="session")
def languages(shared_url):
    """What the server offers."""
    with urllib.request.urlopen(f"{shared_url}/health", timeout=30) as response:
        return json.loads(response.read())["languages"]


@pytest.mark.long
@pytest.mark.parametrize("case", list(parameters()))
async def test_answers_as_sandboxfusion_does(shared_url, http, languages, case):
    if case.language and case.language not in languages:
        pytest.skip(f"{case.language} is not installed here")
    if case.name == "fields/language_without_runner" and "racket" in languages:
        pytest.skip("Racket is installed here")
    if case.name == "jupyter/fetch_absolute" and IN_TMP:
        pytest.skip("the interpreter lives below /tmp, so programs work in a folder there, and not in /tmp itself")
    await compare(http, shared_url, case)


async def compare(http, url, case):
    """Ask, and compare the answer with the recorded one."""
    listed = DIFFERENCES.get(case.name, {})
    for attempt in (case, patient(case)):
        differences = differing(RECORD["cases"][case.name], await ask(http, url, attempt), gist(case))
        if differences == listed or not (SAME_PYTHON or set(differences) - set(listed)):
            break
    if SAME_PYTHON:
        assert differences == listed
    else:
        assert set(differences) <= set(listed)


def test_the_documentation_tells_every_reason():
    page = " ".join((Path(__file__).parents[4] / "docs" / "sandboxfusion.md").read_text().split())
    assert [reason["why"] for reason in REASONS if reason["why"] not in page] == []


def test_every_case_is_recorded_and_every_difference_is_one_of_a_case():
    assert set(RECORD["cases"]) == set(CASES)
    assert set(DIFFERENCES) <= set(CASES)
    assert len(DIFFERENCES) == sum(len(reason["cases"]) for reason in REASONS)  # no case is listed twice
    assert all(reason["why"] and reason["cases"] for reason in REASONS)
