from __future__ import annotations

import sys

import pytest
from support import records_factory as factory

from experiments import plots


def test_a_run_with_looks_is_drawn_as_svg_and_png() -> None:
    drawn = plots.plots(factory.default_on())
    assert [plot.name for plot in drawn[:2]] == ["axes", "pairs_decode_tok_s_c8"]
    for plot in drawn:
        assert "<svg" in plot.svg
        assert "<script" not in plot.svg
        assert plot.png.startswith(b"\x89PNG")
    assert "decode/tok_s/c2 (failing)" in drawn[0].svg
    assert sorted(plots.files(drawn))[0] == "plots/axes.png"
    assert "matplotlib.pyplot" not in sys.modules


def test_the_same_run_gives_the_same_bytes() -> None:
    assert plots.plots(factory.terminal()) == plots.plots(factory.terminal())


@pytest.mark.parametrize("name", ["parity_failed", "out_of_memory", "not_engaged", "interrupted"])
def test_no_speed_is_drawn_where_none_may_be_shown(name: str) -> None:
    assert plots.plots(factory.ALL[name]()) == ()


def test_an_open_interval_is_drawn() -> None:
    record = factory.default_on()
    look = record.looks[-1]
    wide = look.effects[3].model_copy(update={"lower": -float("inf"), "upper": float("inf")})
    look = look.model_copy(update={"effects": (*look.effects[:3], wide, *look.effects[4:])})
    drawn = plots.plots(record.model_copy(update={"looks": (look,)}))
    assert all(plot.png for plot in drawn)
