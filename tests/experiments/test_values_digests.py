"""Digests of parts as one, and how two of them differ."""

from __future__ import annotations

from experiments.values import named_digests, unlike


def test_parts_that_differ_are_named() -> None:
    one = named_digests({"clean": "a" * 16, "noise": "b" * 16, "cond": "c" * 16})
    assert one == "clean:aaaaaaaa noise:bbbbbbbb cond:cccccccc"
    other = named_digests({"clean": "a" * 16, "noise": "d" * 16, "cond": "e" * 16})
    assert unlike(one, other) == "noise, cond"
    assert unlike(one, one) == ""


def test_digests_without_parts_are_shown_whole() -> None:
    assert unlike("31f2", "77ab") == "31f2 and 77ab"
    assert unlike("clean:31f2", "31f2") == "clean:31f2 and 31f2"
    assert unlike("clean:31f2", "noise:31f2") == "clean:31f2 and noise:31f2"
