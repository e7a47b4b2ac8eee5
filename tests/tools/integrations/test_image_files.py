"""Images are found by their names in a folder."""

from __future__ import annotations

import pytest

from tests.tools.sandbox.image_maker import docker_save, layer, oci_files, oci_folder
from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.local.images.by_name import image_file

LAYER = layer([("etc/marker", b"x\n")])


@pytest.mark.parametrize("file", ["a_b_1", "a_b_1.tar", "a_b_1.tar.gz"])
def test_a_file_called_like_the_image(tmp_path, file):
    path = docker_save(tmp_path / file, [LAYER])
    assert image_file(tmp_path, "a/b:1") == str(path)


def test_a_name_without_a_tag_is_the_latest(tmp_path):
    path = docker_save(tmp_path / "a_latest.tar", [LAYER])
    assert image_file(tmp_path, "a") == str(path)


def test_an_image_in_a_layout(tmp_path):
    oci_folder(tmp_path, oci_files([LAYER], name="a/b:1"))
    assert image_file(tmp_path, "a/b:1") == f"{tmp_path}#a/b:1"
    with pytest.raises(ConfigError, match=rf"skopeo copy docker://c:2 oci:{tmp_path}:c:2"):
        image_file(tmp_path, "c:2")


def test_the_error_says_what_to_bring(tmp_path):
    with pytest.raises(ConfigError, match=rf"docker save a/b:1 -o {tmp_path}/a_b_1\.tar"):
        image_file(tmp_path, "a/b:1")
