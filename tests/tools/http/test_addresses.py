"""What counts as the address of an HTTP server."""

from __future__ import annotations

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.tools.http.addresses import check_address, is_address


@pytest.mark.parametrize("url", ["http://h", "https://h:1/prefix", "http://[::1]:30000"])
def test_addresses(url):
    assert is_address(url)


@pytest.mark.parametrize(
    "url", ["", "h:1", "ftp://h", "http://", "http://h:0", "http://h:99999", "http://[::1", None, 3]
)
def test_no_addresses(url):
    assert not is_address(url)


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("http://h", "http://h"),
        ("http://h/", "http://h"),
        (" https://h:1/prefix// ", "https://h:1/prefix"),
        ("http://[::1]:30000", "http://[::1]:30000"),
    ],
)
def test_an_address_in_its_normal_form(url, normal):
    assert check_address(url) == normal


@pytest.mark.parametrize("url", ["h:1", "http://h:0", "http://h?y=1", "http://h#y", "http://a:b@h", "http://[", 7])
def test_what_is_no_address_is_named(url):
    with pytest.raises(ConfigError, match="the address of a search server must"):
        check_address(url, "a search server")
