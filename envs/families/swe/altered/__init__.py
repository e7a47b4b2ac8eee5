"""Tests altered so that they must fail, which the process that they run in cannot tell from the hidden tests."""
