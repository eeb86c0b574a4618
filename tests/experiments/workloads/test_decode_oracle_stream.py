"""Streams of a server as bytes and times: HTTP, events, tokens, the time that counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.workloads.decode.oracle_http import (
    Address,
    Answer,
    ServerFailed,
    parsed_address,
    read_answer,
)
from experiments.workloads.decode.oracle_stream import (
    Completion,
    TooShort,
    gaps_together,
    read_completion,
    steps_together,
    tokens_before_all,
)
from levers.errors import BadParameter

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n"
PLAIN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def event(content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x};note=1\r\n".encode() + data + b"\r\n"


def text(word: str = "x", **more: Any) -> bytes:
    return event({"choices": [{"text": word, "finish_reason": None, **more}]})


def usage(tokens: int, prompt: int = 5, **more: Any) -> bytes:
    counted = {"prompt_tokens": prompt, "completion_tokens": tokens, **more}
    return event({"choices": [], "usage": counted})


DONE = b"data: [DONE]\n\n"


def answer(*pieces: bytes, head: bytes = PLAIN_HEAD) -> Answer:
    """Piece ``k`` comes at ``k`` seconds; the head with the first."""
    found = Answer(sent_s=-1.0)
    found.pieces = [(float(k), piece) for k, piece in enumerate((head + pieces[0], *pieces[1:]))]
    return found


@pytest.mark.parametrize("cut", range(1, 90, 7))
def test_an_event_has_the_time_of_the_piece_that_completed_it(cut: int) -> None:
    whole = HEAD + chunk(text("a")) + chunk(usage(1) + DONE) + b"0\r\n\r\n"
    found = Answer(sent_s=0.0)
    found.pieces = [(1.0, whole[:cut]), (2.0, whole[cut:])]
    reply = read_answer(found)
    assert reply.status == 200
    assert [json.loads(data).get("usage", {}) != {} for _, data in reply.events[:2]] == [
        False,
        True,
    ]
    assert reply.events[-1] == (2.0, b"[DONE]")
    ends = len(HEAD + chunk(text("a")))
    assert reply.events[0][0] == (1.0 if cut >= ends else 2.0)


def test_carriage_returns_and_comments_of_a_stream_are_no_events() -> None:
    lines = b": ping\r\n\r\nevent: x\r\ndata: 1\r\n\r\n"
    assert read_answer(answer(lines)).events == [(0.0, b"1")]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "gave no answer"),
        (b"hello\r\n\r\n", "does not speak HTTP"),
        (HEAD + b"zz\r\n", "a broken chunk"),
    ],
)
def test_what_is_no_answer_is_named(data: bytes, words: str) -> None:
    found = Answer(sent_s=0.0)
    found.pieces = [(1.0, data)]
    with pytest.raises(ServerFailed, match=words):
        read_answer(found)


def test_a_token_for_each_text_and_the_usage_must_agree() -> None:
    last = event({"choices": [{"text": "", "finish_reason": "length"}]})
    pieces = (text(), text(), text(), last + usage(3) + DONE)
    found = read_completion(answer(*pieces), prompt_tokens=5, tokens=3)
    assert found == Completion(-1.0, (0.0, 1.0, 2.0), 5, 0)
    with pytest.raises(ServerFailed, match="usage says 4 tokens and its stream has 3"):
        read_completion(answer(*pieces[:3], usage(4) + DONE), 5, 3)


def test_several_tokens_in_an_event_are_counted_where_it_says_so() -> None:
    counted = event({"choices": [{"text": "ab"}], "usage": {"completion_tokens": 2}})
    ids = text("cd", token_ids=[7, 8])
    more = event({"choices": [{"text": "e"}], "usage": {"completion_tokens": 5}})
    found = read_completion(answer(counted, ids, more, usage(5) + DONE), 5, 5)
    assert found.times_s == (0.0, 0.0, 1.0, 1.0, 2.0)
    half_a_character = read_completion(answer(text(""), text("é"), usage(2) + DONE), 5, 2)
    assert len(half_a_character.times_s) == 2


def test_cached_tokens_of_a_prompt_are_read() -> None:
    details = usage(1, prompt_tokens_details={"cached_tokens": 4})
    assert read_completion(answer(text(), details + DONE), 5, 1).cached_tokens == 4


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((text(), text()), "broke off after 2 of 3 tokens"),
        ((text(), usage(1) + DONE), "answered 1 of 3 tokens: a shorter answer is no speed-up"),
        ((text(), DONE), "sends no usage"),
        ((text(), event({"error": {"message": "dead"}})), "failed in its answer"),
        ((text(), b"data: {\n\n"), "no JSON"),
        ((text() * 3, usage(3, prompt=6) + DONE), "counted 6 tokens in a prompt of 5"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_is_named(
    pieces: tuple[bytes, ...], words: str
) -> None:
    with pytest.raises(ServerFailed, match=words):
        read_completion(answer(*pieces), 5, 3)


def test_a_refusal_is_shown() -> None:
    refused = answer(b'{"error": "too busy"}', head=b"HTTP/1.1 503 Busy\r\n\r\n")
    with pytest.raises(ServerFailed, match=r"status 503: \{\"error\": \"too busy\"\}"):
        read_completion(refused, 5, 3)


def completion(*times_s: float) -> Completion:
    return Completion(0.0, times_s, 5, 0)


def test_time_runs_from_the_last_first_token_until_every_stream_has_its_steps() -> None:
    early = completion(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
    late = completion(3.5, 4.1, 5.1, 6.1, 7.1)
    assert steps_together([early, late], 2) == pytest.approx([0.6, 1.0])
    assert gaps_together([early, late], 2) == pytest.approx([1000.0, 1000.0, 600.0, 1000.0])
    assert tokens_before_all([early, late]) == 3
    assert steps_together([late], 4) == pytest.approx([0.6, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("early", [(1.0, 2.0, 3.0), (1.0, 2.0, 3.0, 4.0), (1.0, 4.0, 4.5)])
def test_a_stream_that_ended_before_the_others_were_measured_is_too_short(
    early: tuple[float, ...],
) -> None:
    late = completion(3.5, 4.1, 5.1, 6.1)
    with pytest.raises(TooShort, match="a stream ended"):
        steps_together([completion(*early), late], 2)


def test_an_address_may_name_the_path_of_the_api() -> None:
    assert parsed_address("http://host:8000") == Address("host", 8000)
    assert parsed_address("http://host/api/v1/") == Address("host", 80, "/api")
    assert Address("host", 80, "/api").url == "http://host:80/api"
    for url in ("https://host", "http://", "http://host:port", "host:80"):
        with pytest.raises(BadParameter, match="no server address"):
            parsed_address(url)
