from __future__ import annotations

import pytest

from experiments.spec import LeverSetting
from experiments.stack.published import Confounded, published, refuse_other_work
from levers.errors import UnknownName, UsageError

LEVERS = tuple(LeverSetting(lever=name, setting="on") for name in ("fix", "fusion"))
AXES = ("train/tok_s", "train/mfu_matmul")
PARAMETERS = {"bs": 8, "profile": "lognormal"}


def read(*texts: str) -> object:
    return published(texts, LEVERS, AXES, PARAMETERS)


def test_a_first_row_of_another_batch_size_is_refused_with_the_cure() -> None:
    with pytest.raises(Confounded, match="the first row has bs=2 and the others have bs=8") as said:
        refuse_other_work({**PARAMETERS, "bs": 2}, PARAMETERS, "slat_flow")
    assert "--set bs=8" in said.value.cure


def test_equal_rows_are_not_refused() -> None:
    refuse_other_work(dict(PARAMETERS), PARAMETERS, "slat_flow")


def test_a_published_figure_of_another_batch_size_is_refused() -> None:
    with pytest.raises(Confounded, match=r"is of bs=2 and the rows are of bs=8"):
        read("none train/mfu_matmul=7.5 bs=2")


def test_a_published_figure_that_does_not_say_its_work_is_refused() -> None:
    with pytest.raises(Confounded, match="does not say at which parameters"):
        read("none train/mfu_matmul=7.5")


def test_a_utilisation_that_rises_by_more_than_the_gain_gives_another_batch_size_away() -> None:
    first = "none train/mfu_matmul=7.5 bs=8"
    with pytest.raises(Confounded, match=r"rises 2\.35x from none to fix, and the gain is 2\.10x"):
        read(first, "fix train/mfu_matmul=17.6 bs=8", "fix gain=2.10 bs=8")


def test_figures_of_one_amount_of_work_are_kept() -> None:
    found = read(
        "fix train/mfu_matmul=17.6 bs=8",
        "fusion train/mfu_matmul=19.8 bs=8",
        "fusion gain=1.15 bs=8",
    )
    assert [(one.after, one.value) for one in found] == [  # type: ignore[attr-defined]
        ("fix", 17.6),
        ("fusion", 19.8),
        ("fusion", 1.15),
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("fixx gain=2 bs=8", UnknownName),
        ("fix mfu=2 bs=8", UnknownName),
        ("fix gain=2 batch=8", UnknownName),
        ("fix gain=two bs=8", UsageError),
        ("fix gain=nan bs=8", UsageError),
        ("none train/mfu_matmul=0 bs=8", UsageError),
        ("fix gain=-2 bs=8", UsageError),
        ("fix gain=2 bs=8 lossless", UsageError),
        ("fix", UsageError),
    ],
)
def test_a_figure_that_cannot_be_read_is_a_mistake(text: str, kind: type[UsageError]) -> None:
    with pytest.raises(kind):
        read(text)
