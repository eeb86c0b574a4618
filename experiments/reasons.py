"""What each reason code means, in words, and what to do about it: a closed table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason code: the sentence a reader sees, and the next step (empty: nothing to do)."""

    text: str
    cure: str = ""


ACTIONS: dict[str, str] = {
    "default-ON": "may ship ON",
    "gated-OFF": "stays OFF",
    "terminal": "closed in this scope",
    "inconclusive": "no verdict yet",
    "invalid": "no verdict, the run is not valid",
}
"""What an outcome means for the one who asked."""

SCREEN_LABEL = "SCREEN: an ordering of candidates, no verdict"
FAMILY_LABEL = "SELECTION among several settings, no verdict"
CHECKED_LABEL = "parity passed"

REASON_TEXTS: dict[str, Reason] = {
    # default-ON
    "byte-exact": Reason(
        "Every compared output is equal to the reference's, bit for bit, no primary axis is proven "
        "slower and every guard is proven inside its margin.",
    ),
    "failing-axis-win": Reason(
        "A win (clearly better, and estimated at no less than the smallest gain worth keeping) is "
        "proven on an axis whose target the reference misses or that has none; parity holds and "
        "every guard is proven inside its margin.",
    ),
    # gated-OFF
    "parity-failed": Reason(
        "The candidate's results are not what the policy demands, so no speed was measured or is "
        "shown.",
        "Look at the first failed check below, correct the candidate and run again.",
    ),
    "regression": Reason(
        "A guarded axis is proven worse than its margin; a win elsewhere does not pay for it.",
        "Keep the lever off in this scope, or narrow it to where it does not lose.",
    ),
    "slower": Reason(
        "The candidate is byte-exact, and a primary axis is proven slower.",
        "Keep the lever off in this scope.",
    ),
    "no-failing-axis-win": Reason(
        "The candidate is not byte-exact (or a win is demanded), and no axis that misses its "
        "target gains enough; a gain on an axis that already reaches its target buys nothing.",
        "Keep the lever off until an axis that it moves misses its target.",
    ),
    "out-of-memory": Reason(
        "The candidate ran out of memory where the reference did the same work.",
        "Lower the candidate's memory need, or ask for a smaller workload (another scope).",
    ),
    "candidate-crashed": Reason(
        "The candidate ended with an error where the reference did the same work.",
        "The candidate's last words are below; correct it and run again.",
    ),
    "candidate-hung": Reason(
        "The candidate did not end within the time limit, and its process group was ended.",
        "Look for a deadlock or an endless loop in the candidate, then run again.",
    ),
    # terminal
    "not-worth-keeping": Reason(
        "Every primary axis is proven within plus or minus the smallest gain worth keeping, guards "
        "inside: nothing is left to measure for this lever in this scope.",
    ),
    # inconclusive
    "guard-undecided": Reason(
        "A guarded axis is neither proven inside its margin nor proven worse.",
        "Add pairs or lower the noise (longer samples, a quieter machine).",
    ),
    "win-undecided": Reason(
        "Whether an axis that misses its target gains enough is not settled.",
        "Add pairs or lower the noise (longer samples, a quieter machine).",
    ),
    "axis-state-undecided": Reason(
        "Whether the reference reaches its target on the deciding axis is not settled.",
        "Add pairs, so that more oracle pairs are measured too.",
    ),
    "oracle-missing": Reason(
        "The oracle that a target is held against could not be measured, so no axis can be called "
        "failing.",
        "Make the oracle available, name another one with --oracle, or run with --oracle none.",
    ),
    "autocorrelated": Reason(
        "Successive pairs resemble each other too much for the interval to hold, also when two "
        "pairs are one unit.",
        "Quiet the machine (other processes, clocks, cooling) and run again.",
    ),
    "budget-spent": Reason(
        "The time budget ended before a verdict was reached.",
        "Run again with a larger --budget.",
    ),
    "too-little-recorded": Reason(
        "The record holds too little to decide from.",
        "Measure again instead of deciding from this record.",
    ),
    # invalid
    "unmet": Reason(
        "The lever cannot run here.",
        "Choose a device, a workload or parameters that meet its needs.",
    ),
    "reference-failed": Reason(
        "The reference could not do its work, so there is nothing to compare with. Where the "
        "candidate could, that is a capability and not a speed-up.",
        "Make the reference run in this scope first, for instance with a smaller workload.",
    ),
    "reference-not-finite": Reason(
        "The reference itself gives values that are not finite.",
        "Correct the model, its inputs or its precision before comparing anything with it.",
    ),
    "reference-not-deterministic": Reason(
        "The policy demands byte-exact results, and the reference differs from itself when run "
        "again.",
        "Make the reference deterministic (pinned autotuning, deterministic algorithms).",
    ),
    "oracle-mode": Reason(
        "The oracle did not run in the mode in which its users run it.",
        "Start it as its users do (compiled, captured, caches as configured).",
    ),
    "lever-defective": Reason(
        "The lever itself is at fault: with its kill switch at off it still changes results "
        "against a process that never imported it, or a hook that states its cases or reads its "
        "sites raised.",
        "Correct the lever: off must mean untouched, and a hook must state what it is asked for.",
    ),
    "environment": Reason(
        "The environment of the measured processes is not the one that was asked for.",
        "Correct what is named below and run again.",
    ),
    "check-empty": Reason(
        "A parity check compared nothing, and nothing compared is not a pass.",
        "Give the check something to compare (prompts, cases, parameters).",
    ),
    "not-engaged": Reason(
        "Both arms ran the same path on every axis: the setting changed nothing here.",
        "Choose a setting or a workload in which the lever engages.",
    ),
    "not-restored": Reason(
        "The lever left something changed after it was disabled.",
        "Correct its disable hook: it puts back exactly what enable found.",
    ),
    "pairs-lost": Reason(
        "More than a fifth of the pairs were lost to causes outside both arms.",
        "Free the device of what is named below and run again.",
    ),
    "uneven-loss": Reason(
        "Pairs were lost in one arm more often than chance allows, so what is left is biased.",
        "Find what disturbs that arm and run again.",
    ),
    "throttled": Reason(
        "The device stayed slowed down (heat or hardware) for longer than the bounded wait.",
        "Cool the device or lower its load, then run again.",
    ),
    "device-busy": Reason(
        "Another process used the device for longer than the bounded wait.",
        "Free the device, or choose another one with --device, then run again.",
    ),
    "inputs-differ": Reason(
        "The arms of a pair did not work on the same inputs, did not produce as much or did other "
        "work while they were timed, or a process loaded other weights than the run began with.",
        "Correct what changes the inputs or the work; where the weights were exchanged on purpose, "
        "start a new run.",
    ),
    "recompiled": Reason(
        "Something was compiled or autotuned inside the timed part of a sample.",
        "Lengthen the warm-up or pin the shapes, so that nothing compiles while timed.",
    ),
    "impossible-figure": Reason(
        "A figure is above what the device's datasheet allows, so the timing is wrong.",
        "Look for work that was skipped or not waited for.",
    ),
    "code-changed": Reason(
        "The code under test was changed while it was checked or measured, so what is there is of "
        "two versions.",
        "Run again, and leave the code alone until it ends, or measure from a copy of it (a git "
        "worktree).",
    ),
    "state-leaked": Reason(
        "State of one arm reached the other.",
        "Correct the lever or the workload so that each process starts clean.",
    ),
    "ranks-disagree": Reason(
        "The ranks of one arm did not do the same work with the same means: environment, autotuned "
        "kernels, inputs or weights are not equal on all of them, or two had the same shard.",
        "Correct what differs between the ranks that are named below, then run again.",
    ),
    "interrupted": Reason(
        "The run was interrupted before it could be decided.",
        "Go on with --resume; no sample on disk is lost.",
    ),
}
"""Every reason code with its words."""


def describe(reason: str) -> Reason:
    """The words of a reason code.

    Raises:
        KeyError: the code is not in the closed list.
    """
    return REASON_TEXTS[reason]
