"""Digests of parts as one, and how two of them differ."""

from __future__ import annotations

from experiments.values import merged_digests, named_digests, unlike


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


def test_parts_with_one_name_are_not_taken_for_one_another() -> None:
    one = "clean:11 noise:22 clean:33 noise:44"
    assert unlike(one, one.replace("11", "99")) == f"{one} and {one.replace('11', '99')}"


def test_digests_of_ranks_keep_their_parts() -> None:
    one = merged_digests(["clean:11 noise:22", "clean:33 noise:44"])
    other = merged_digests(["clean:11 noise:22", "clean:33 noise:55"])
    assert unlike(one, other) == "noise"
    assert ":" not in merged_digests(["clean:11", "noise:22"])
    assert merged_digests(["31f2", "77ab"]) != merged_digests(["77ab", "31f2"])
