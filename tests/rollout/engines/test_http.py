"""What the HTTP engines share."""

from __future__ import annotations

import pytest

from toolgym.rollout.engines.http import RETRY_AFTER_LIMIT, is_address, retry_after


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        ("2.5", 2.5),
        ("-3", 0.0),
        ("86400", RETRY_AFTER_LIMIT),
        ("inf", RETRY_AFTER_LIMIT),
        ("nan", 7.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 7.0),
        ("", 7.0),
    ],
)
def test_the_wait_is_what_the_header_says_within_bounds(header, seconds):
    assert retry_after(header, 7.0) == seconds


@pytest.mark.parametrize("url", ["http://h", "https://h:1/prefix", "http://[::1]:30000"])
def test_addresses(url):
    assert is_address(url)


@pytest.mark.parametrize(
    "url", ["", "h:1", "ftp://h", "http://", "http://h:0", "http://h:99999", "http://[::1", None, 3]
)
def test_no_addresses(url):
    assert not is_address(url)
