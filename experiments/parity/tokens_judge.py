"""What compared streams allow to claim: strict or near-tie, by the policy; torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.parity.results import failed
from experiments.parity.streams import Choice, Compared
from experiments.parity.token_truth import FromTruth
from experiments.parity_records import CheckResult
from experiments.values import Scalar, digest_of
from levers.policy import NEAR_TIE_GAP_NAT, GatingPolicy, ParityClass

GAP = "worst_gap_nat"
COUNTS = ("passed", "total")


def judge(
    name: str,
    compared: Compared,
    policy: GatingPolicy,
    *,
    strict: bool,
    truth: FromTruth | None = None,
) -> CheckResult:
    """Strict or near-tie, by the policy; the worst divergence is shown either way.

    ``truth`` is there where :func:`asks_truth`, and then decides in place of the share.
    """
    worst = max(compared.divergences, key=lambda one: one.gap, default=None)
    wrong, where = _wrong(compared, policy, strict=strict, truth=truth)
    where = where or (worst.describe() if worst else "")
    detail = _detail(compared, policy, strict=strict, truth=truth)
    equal = compared.total - len(compared.divergences)
    figures: dict[str, Scalar] = {
        "streams": compared.total,
        "streams_equal": equal,
        "near_ties": len(compared.divergences),
        "near_ties_allowed": _allowed(compared, policy),
        GAP: worst.gap if worst else 0.0,
        "stops_elsewhere": len(compared.endings),
        "reference_apart": compared.reference_apart,
        **(truth.figures() if truth else {}),
    }
    if wrong:
        counts = (min(equal, compared.total - 1), compared.total)
        return failed(name, wrong, where, counts, detail, figures)
    return CheckResult(
        name=name,
        status="passed",
        passed=compared.total,
        total=compared.total,
        worst=f"{len(compared.divergences)} near-ties" if worst else "",
        where=where,
        detail=detail,
        strongest=_strongest(compared),
        figures=figures,
        digest=compared.digest,
    )


def judged(name: str, results: Mapping[str, CheckResult]) -> CheckResult:
    """What each model's streams showed, by its name, as one check.

    One model that fails is the check's failure: its near-ties are not made up for by the streams of
    another. Nameless is the timed model, which is the only one then.
    """
    if len(results) == 1 and "" in results:
        return results[""]
    passed, total = (sum(getattr(one, what) for one in results.values()) for what in COUNTS)
    detail = "; ".join(f"{model}: {one.detail}" for model, one in results.items())
    figures = _figures(results)
    bad = [(model, one) for model, one in results.items() if one.status != "passed"]
    if bad:
        model, first = bad[0]
        more = f" (and {len(bad) - 1} more models fail)" if len(bad) > 1 else ""
        worst = f"{model}: {first.worst}{more}"
        return failed(name, worst, first.where, (passed, total), detail, figures)
    strongest = ParityClass.BYTE_EXACT
    for one in results.values():
        strongest = strongest.weaker(one.strongest)
    widest = max(results.values(), key=lambda one: float(one.figures[GAP] or 0.0))
    ties = figures["near_ties"]
    return CheckResult(
        name=name,
        status="passed",
        passed=passed,
        total=total,
        worst=f"{ties} near-ties" if ties else "",
        where=widest.where,
        detail=detail,
        strongest=strongest,
        figures=figures,
        digest=digest_of(" ".join(one.digest for one in results.values())),
    )


def _figures(results: Mapping[str, CheckResult]) -> dict[str, Scalar]:
    """The figures over all models, and behind each model's name how many streams were equal."""
    names = dict.fromkeys(name for one in results.values() for name in one.figures)
    found: dict[str, Scalar] = {
        name: sum(int(one.figures.get(name) or 0) for one in results.values())
        for name in names
        if name != GAP
    }
    found[GAP] = max(float(one.figures[GAP] or 0.0) for one in results.values())
    for model, one in results.items():
        found[f"streams_equal of {model}"] = one.figures["streams_equal"]
    return found


def _strongest(compared: Compared) -> ParityClass:
    """What streams that passed leave possible: a gap beyond a near-tie's is a larger error."""
    if not all(one.is_near(NEAR_TIE_GAP_NAT) for one in compared.choices):
        return ParityClass.TOLERATED
    return ParityClass.LOSSLESS if compared.divergences else ParityClass.BYTE_EXACT


def _allowed(compared: Compared, policy: GatingPolicy) -> int:
    """So many streams may part at a near-tie."""
    return int(policy.near_tie_share * compared.total + 1e-9) + compared.reference_apart


def asks_truth(compared: Compared, policy: GatingPolicy, *, strict: bool) -> bool:
    """Whether only the number of near-ties speaks against a lever that claims no more than this."""
    return may_ask_truth(compared, policy, strict=strict) and not wide(compared.choices, policy)


def may_ask_truth(compared: Compared, policy: GatingPolicy, *, strict: bool) -> bool:
    """Whether truth is asked if all that parts turns out to be a near-tie."""
    return (
        not strict
        and policy.claims is ParityClass.LOSSLESS
        and len(compared.divergences) > _allowed(compared, policy)
        and not compared.shorter
    )


def wide(choices: Sequence[Choice], policy: GatingPolicy) -> list[Choice]:
    """Those that are no near-ties."""
    return [one for one in choices if not one.is_near(policy.near_tie_gap_nat)]


def _wrong(
    compared: Compared, policy: GatingPolicy, *, strict: bool, truth: FromTruth | None
) -> tuple[str, str]:
    """Why the check fails, in words, and where if not at the worst divergence; empty if it passes.

    A stream that parted by more than a near-tie fails there, so its end is not asked about.
    """
    parted, allowed = len(compared.divergences), _allowed(compared, policy)
    if compared.shorter:
        return compared.shorter[0], ""
    if strict and parted:
        return f"{compared.total - parted} of {compared.total} streams equal, all must be", ""
    if parting := wide(compared.divergences, policy):
        return f"{len(parting)} streams leave the reference's by more than a near-tie", ""
    if parted > allowed and (truth is None or not truth.tells):
        return f"{parted} near-ties where {allowed} are allowed", ""
    if truth is not None and truth.further:
        return f"{parted} near-ties, and {truth.describe()}", ""
    if truth is not None and (far := wide(truth.later, policy)):
        said = f"{len(far)} tokens behind near-ties are none that the reference would choose there"
        return said, max(far, key=lambda one: one.gap).describe()
    if stops := wide(compared.endings, policy):
        first = max(stops, key=lambda one: one.gap)
        said = f"{len(stops)} answers stop where the reference, on the same tokens, would go on"
        return said, first.describe()
    return "", ""


def _detail(
    compared: Compared, policy: GatingPolicy, *, strict: bool, truth: FromTruth | None
) -> str:
    equal = compared.total - len(compared.divergences)
    ties = len(compared.divergences) - len(wide(compared.divergences, policy))
    rule = "strict" if strict else f"near-ties allowed: {_allowed(compared, policy)}"
    parts = [f"{equal}/{compared.total} streams equal, {ties} near-ties ({rule})"]
    if truth is not None:
        parts.append(truth.describe())
    if compared.endings:
        right = len(compared.endings) - len(wide(compared.endings, policy))
        count = len(compared.endings)
        parts.append(f"{count} stop elsewhere after one, {right} where the reference would, too")
    if compared.reference_apart:
        parts.append(
            f"reference not deterministic: {compared.reference_apart} streams differ from itself"
        )
    return "; ".join(parts)
