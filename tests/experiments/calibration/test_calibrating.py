from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.calibration import pipeline as calibration_pipeline
from experiments.calibration import run as calibrating
from experiments.calibration.records import Calibration
from experiments.calibration.requests import CalibrateRequest
from experiments.calibration.run import FOLDER
from experiments.calibration.text import print_calibration
from experiments.commands.output import stdout
from experiments.conditions import Limits
from experiments.requests import SilentListener
from experiments.spool_reader import JOURNAL, load
from levers.errors import UnknownName, UsageError
from tests.support import runs
from tests.support.stub_workload import RATE

PAIRS = 12
QUICK = {"clock": "virtual", "noise": "0.02"}


class InterruptedAfter(SilentListener):
    """The user presses Ctrl-C after so many samples; stages and warnings are kept."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.stages: list[str] = []

    def on_stage(self, name: str, detail: str = "") -> None:
        self.stages.append(f"{name} {detail}")

    def on_sample(self, done: int, planned: int, effects: object, seconds_left: object) -> None:
        assert planned in (2 * PAIRS, 2 * PAIRS + 1), "one more while a pair is cut in half"
        if done == self.samples:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        runs.use_stub(patch)
        patch.setenv("LEVERGATE_HOME", str(folder))
        patch.setenv("LEVERGATE_LOCKS", str(folder / "device-locks"))
        patch.setattr(calibrating, "limits_for", lambda *_: Limits())  # whatever else runs here
        yield folder


@pytest.fixture(scope="module")
def measured(home: Path) -> Calibration:
    """Twelve pairs through real processes, interrupted after nine samples and resumed."""
    request = CalibrateRequest("stub", settings=QUICK, pairs=PAIRS, seed=3)
    with pytest.raises(KeyboardInterrupt, match="levergate calibrate --resume"):
        calibration_pipeline.calibrate(request, InterruptedAfter(9))
    [folder] = (home / FOLDER).glob("2*")
    again = CalibrateRequest("stub", settings=QUICK, seed=3, resume=folder.name)
    for other, said in (
        (replace(again, seed=4), "has --seed 3, not 4; levergate calibrate --resume"),
        (replace(again, workload="decode"), "has --workload stub, not decode"),
        (replace(again, budget_s=60.0), "has --budget none, not 60s"),
    ):
        with pytest.raises(UsageError, match=said):
            calibration_pipeline.calibrate(other, SilentListener())
    return calibration_pipeline.calibrate(again, SilentListener())


def test_equal_arms_are_measured_by_the_real_runner_and_resumed(
    home: Path, measured: Calibration
) -> None:
    assert measured.pairs == PAIRS
    record = load(home / FOLDER, measured.calibration_id).record
    assert record.kind == "calibration"
    assert (record.spec.ref, record.spec.cand) == ("off", "off")
    assert len(record.samples) == 2 * PAIRS
    assert len((home / FOLDER / measured.calibration_id / JOURNAL).read_bytes()) > 0
    firsts = [s.arm for s in record.samples if s.position == 0]
    assert firsts.count("ref") == firsts.count("cand") == PAIRS // 2
    rate = next(one for one in measured.noise if one.axis == RATE)
    assert 0.005 < rate.sd < 0.06
    assert measured.seconds_per_pair > 0.05


def test_no_lever_switch_is_set_in_a_calibration(measured: Calibration) -> None:
    facts = measured.environment.facts
    assert not [name for name in facts if "LEVER_" in name]


def test_it_is_no_run_of_the_registry(home: Path, measured: Calibration) -> None:
    from experiments import pipeline

    assert pipeline.history(None) == ()
    assert not list((home / "runs").glob("*/spec.json"))


def test_it_is_shown_with_its_rates_and_its_noise(
    measured: Calibration, capsys: pytest.CaptureFixture[str]
) -> None:
    print_calibration(stdout(), measured)
    shown = capsys.readouterr().out
    for word in ("12 A/A pairs", "false verdicts", "planted_at_import", RATE, "80 % power"):
        assert word in shown


@pytest.mark.parametrize(
    ("request_", "error", "said"),
    [
        (CalibrateRequest("stub", pairs=4), UsageError, "--pairs 12"),
        (CalibrateRequest("stubb"), UnknownName, "stub"),
        (CalibrateRequest(resume="nothing"), UnknownName, "no run 'nothing'"),
    ],
)
def test_a_request_that_cannot_be_measured_is_refused(
    home: Path, request_: CalibrateRequest, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        calibration_pipeline.calibrate(request_, SilentListener())
