"""The decode workload with one more site: what is done after each step, beside the decoding.

The reference does a quarter of the step's time of real work that nobody needs (it is done
here, beside the decoder, so that a lever can leave it out and be *honestly* faster).
A twin of ``fa2_nsplits_cap`` then changes what happens after a step: nothing at all (20 % faster),
a quarter more (20 % slower), or a wrong token.
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments.values import Scalar
from experiments.workloads.decode.workload import DecodeWorkload

AFTER_STEP = "decode.after_step"
REDUNDANT = 0.25
"""Work after a step of the reference, as a share of the step: leaving it out is 20 % faster."""


class TwinDecode(DecodeWorkload):
    """The decode workload, whose engine does redundant work after each step."""

    name = "decode_twin"
    summary = "the decode workload with redundant work that a planted lever can leave out"
    opener = "benchmarks.twin_session:open_session"

    def sites(self, parameters: Mapping[str, Scalar]) -> tuple[str, ...]:
        """The split rule, and what is done after a step."""
        return (*super().sites(parameters), AFTER_STEP)


TWIN = TwinDecode()
