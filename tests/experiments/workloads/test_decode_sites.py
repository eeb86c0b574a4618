"""The sites of the decoder: what is asked of them, what is seen there, and lazily made weights."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from experiments.values import Scalar
from experiments.workloads.base import DeviceFacts
from experiments.workloads.decode import names
from experiments.workloads.decode.model import Matrix
from experiments.workloads.decode.session import DecodeSession, open_session
from experiments.workloads.decode.workload import DECODE
from levers.base import Site

CPU = DeviceFacts("cpu", "some CPU", 2**34)
SHORT = {
    "prompt_tokens": "32",
    "output_tokens": "8",
    "rounds": "4",
    "round_steps": "6",
    "ttft_repeats": "20",
    "ttft_tokens": "16",
    "concurrency": "1,2",
}
LAYERS = 3


def parameters() -> Mapping[str, Scalar]:
    return DECODE.resolve(SHORT, CPU)


def session() -> DecodeSession:
    return open_session(parameters(), "cpu", 1, "engine")


def digests(found: DecodeSession) -> Mapping[str, str]:
    return found.outputs({"want": "digests"}).digests


class Halves:
    """A stored form that is no tensor: the matrix in bf16."""

    def __init__(self, weight_EC: Tensor) -> None:
        self._weight_EC = weight_EC.bfloat16()
        self.shape, self.nbytes = weight_EC.shape, self._weight_EC.nbytes

    def linear(self, x_NC: Tensor) -> Tensor:
        return x_NC @ self._weight_EC.to(x_NC.dtype).T


def test_the_session_has_the_sites_that_the_workload_names() -> None:
    assert tuple(session().sites) == DECODE.sites(parameters()) == names.SITES


def test_each_operation_is_seen_for_each_axis_and_only_while_it_is_exercised() -> None:
    found = session()
    found.warm_up()
    assert all(site.observations == {} for site in found.sites.values())
    found.exercise()
    silent = {name for name, site in found.sites.items() if not site.observations}
    assert silent == {names.SPLIT_RULE_CONTIGUOUS}
    for name in set(names.SITES) - silent:
        assert set(found.sites[name].observations) == {"decode/tok_s/c1", "decode/tok_s/c2"}, name
    one = {name: site.observations.get("decode/tok_s/c1") for name, site in found.sites.items()}
    assert one[names.ADD_NORM] == {"original.add_norm": 2 * 2 * LAYERS}
    assert one[names.BLOCK] == {"original.block": 2 * LAYERS}
    assert one[names.ATTENTION] == {"torch": 2 * LAYERS}
    assert one[names.WEIGHTS] == {"weights=float32": 2 * (4 * LAYERS + 1)}
    assert one[names.STEP] == {"step=eager": 1}


def test_what_a_callable_says_that_it_ran_is_what_is_seen() -> None:
    class Doubting:
        ran = ""

        def __call__(self, gate_up_NJ: Tensor) -> Tensor:
            self.ran = f"rows={len(gate_up_NJ)}"
            act_NI: Tensor = found_before(gate_up_NJ)
            return act_NI

    found = session()
    site = found.sites[names.SWIGLU]
    found_before = site.launch
    site.launch = Doubting()
    found.exercise()
    assert site.observations == {f"decode/tok_s/c{c}": {f"rows={c}": 2 * LAYERS} for c in (1, 2)}


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        (names.ADD_NORM, 2 * LAYERS),
        (names.QK_NORM_ROPE, LAYERS),
        (names.SWIGLU, LAYERS),
        (names.LINEAR, 4 * LAYERS + 1),
        (names.BLOCK, LAYERS),
        (names.ATTENTION, LAYERS),
    ],
)
def test_a_step_goes_through_the_callable_of_the_moment(name: str, calls: int) -> None:
    found = session()
    plain = digests(found)
    site, seen = found.sites[name], []
    before = site.launch

    def counting(*arguments: object) -> object:
        seen.append(arguments)
        return before(*arguments)

    site.launch = counting
    assert digests(found) == plain
    prefills = 0 if name == names.ATTENTION else calls * 3
    assert len(seen) == prefills + calls * 2 * 4


def test_every_matrix_is_offered_once_and_again_after_the_site_changed() -> None:
    found = session()
    plain, site = digests(found), found.sites[names.WEIGHTS]
    before, seen = site.launch, []

    def halving(name: str, tensor_EC: Tensor) -> Matrix:
        seen.append((name, tuple(tensor_EC.shape)))
        return Halves(tensor_EC)

    site.launch = halving
    # The shipped weights are bf16, so that nothing is lost in this form; its products may round
    # otherwise.
    streams = found.outputs({"want": "tokens", "prompts": 2}).streams
    layer = [("qkv", (512, 128)), ("o", (128, 256)), ("gate_up", (1024, 128)), ("down", (128, 512))]
    assert seen == [*layer * LAYERS, ("head", (1024, 128))]
    found.exercise()
    assert len(seen) == 4 * LAYERS + 1
    assert set(site.observations["decode/tok_s/c2"]) == {"weights=Halves"}
    site.launch = before
    assert digests(found) == plain
    assert found.outputs({"want": "tokens", "prompts": 2}).streams == streams


def test_each_matrix_is_freed_before_the_next_is_read() -> None:
    """So that the peak of a quantised model is near its own size and not that of the bf16 one."""
    found = session()
    seen: list[weakref.ref[Tensor]] = []

    def halving(name: str, tensor_EC: Tensor) -> Matrix:
        assert [ref() for ref in seen if ref() is not None] == [], name
        seen.append(weakref.ref(tensor_EC))
        return Halves(tensor_EC)

    found.sites[names.WEIGHTS].launch = halving
    found.outputs({"want": "tokens", "prompts": 1})
    assert len(seen) == 4 * LAYERS + 1


def test_the_old_weights_are_freed_before_the_new_ones_are_read() -> None:
    found = session()
    old = weakref.ref(found._engine.weights.embed_VC)

    def checking(name: str, tensor_EC: Tensor) -> Matrix:
        assert old() is None, name
        return tensor_EC

    found.sites[names.WEIGHTS].launch = checking
    assert found._engine.weights.layers[0] is not None


def test_nothing_is_loaded_before_its_first_use() -> None:
    found = session()
    site, seen = found.sites[names.WEIGHTS], []

    def watching(name: str, tensor_EC: Tensor) -> Matrix:
        seen.append(name)
        return tensor_EC

    site.launch = watching
    assert seen == []
    found.warm_up()
    assert seen.count("head") == 1


def test_a_step_is_run_as_its_site_says() -> None:
    found = session()
    site: Site = found.sites[names.STEP]
    before, asked = site.launch, []

    def counting(engine: object, count: int) -> object:
        asked.append(count)
        return before(engine, count)

    site.launch = counting
    found.warm_up()
    assert asked == [1, 2]
    assert torch.is_tensor(found._step(2)())
