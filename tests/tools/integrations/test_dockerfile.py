"""What a session takes of a Dockerfile, and what it says that it leaves out."""

from __future__ import annotations

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.tools.integrations.dockerfile import FileCopy, read_dockerfile


@pytest.fixture
def read(tmp_path):
    for name in ("a.txt", "b.txt", "data/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    def read(text):
        (tmp_path / "Dockerfile").write_text(text)
        return read_dockerfile(tmp_path / "Dockerfile")

    return read


def test_folder_variables_and_files(read, tmp_path):
    found = read(
        """# syntax=docker/dockerfile:1
ARG VERSION=12
FROM --platform=linux/amd64 debian:12 AS base
LABEL a=b
ENV ROOT=/srv \\
    # a comment in between

    WORD="two words" PLAIN=\\$x
ENV OLD and new
ENV A=$WORD B="[${WORD}] \\"\\$" C='$WORD' D=\\ $
ARG SUB=work
WORKDIR $ROOT/${SUB}
WORKDIR src
USER agent
COPY a.txt b.txt /files
COPY --chown=agent:agent data .
COPY ["a.txt", "../renamed.txt"]
COPY *.txt all/
CMD ["sleep", "infinity"]
"""
    )
    assert (found.image, found.workdir, found.left_out) == ("debian:12", "/srv/work/src", [])
    values = {"A": "two words", "B": '[two words] "$', "C": "$WORD", "D": " $"}
    assert found.env == {"ROOT": "/srv", "WORD": "two words", "PLAIN": "$x", "OLD": "and new", **values}
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    assert found.copies == [
        FileCopy((a, b), "/files", True),
        FileCopy((tmp_path / "data",), "/srv/work/src", True),
        FileCopy((a,), "/srv/work/renamed.txt", False),
        FileCopy((a, b), "/srv/work/src/all", True),
    ]
    assert [one.folder for one in found.copies] == ["/files", "/srv/work/src", "/srv/work", "/srv/work/src/all"]


@pytest.mark.parametrize(
    "line",
    [
        "RUN apt-get install -y jq",
        "run echo",
        "ADD https://example.com/x /x",
        "ENTRYPOINT serve",
        "COPY --from=build /x /y",
        "COPY --chmod=755 a.txt /x",
        "COPY a.txt",
        'COPY ["a.txt", 1]',
        "ENV PATH=/x:$PATH",
        "ENV A='x",
        "ENV A=b c",
        "WORKDIR ${ROOT:-/x}",
        "VOLUME /data",
        'SHELL ["bash"]',
        "ONBUILD ENV A=b",
    ],
)
def test_what_only_an_image_can_have_is_left_out(read, line):
    name, _, rest = line.partition(" ")
    assert read(f"FROM x\n\n{line}\nENV B=c\n").left_out == [f"line 3: {name.upper()} {rest}"]


def test_text_in_a_dockerfile_is_no_instruction(read):
    found = read("FROM x\nRUN <<EOF\nWORKDIR /x\nENV A=b\nEOF\nCOPY <<A <<B /x/\nENV\nA\nENV\nB\nWORKDIR /y")
    assert (found.workdir, found.env) == ("/y", {})
    assert found.left_out == ["line 2: RUN <<EOF", "line 6: COPY <<A <<B /x/"]


def test_only_the_last_stage_counts(read):
    found = read("ARG TAG=1\nFROM build:$TAG\nWORKDIR /x\nENV A=b\nRUN make\nFROM run:2\nCOPY a.txt /a\n")
    assert (found.image, found.workdir, found.env, found.left_out) == ("run:2", None, {}, [])
    assert len(found.copies) == 1


def test_an_ignore_file_is_not_honoured(read, tmp_path):
    (tmp_path / ".dockerignore").write_text("a.txt")
    assert read("FROM x\nCOPY . /x\n").left_out == ["line 2: COPY . /x"]


@pytest.mark.parametrize("name", ["none.txt", "*.none", "../x", "/../x", "out"])
def test_what_is_not_beside_it_cannot_be_copied(read, tmp_path, name):
    (tmp_path / "out").symlink_to("/etc")
    with pytest.raises(ConfigError, match=r"Dockerfile, line 2: COPY .*(no such file|leads outside)"):
        read(f"FROM x\nCOPY {name} /x\n")


def test_a_dockerfile_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_dockerfile(tmp_path / "Dockerfile")
