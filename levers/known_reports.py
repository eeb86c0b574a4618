"""What a sanitizer is known to report without there being a fault."""

from __future__ import annotations

from dataclasses import dataclass

from levers.base import Lever
from levers.errors import DefectiveLever

LEAST_NAME = 8
"""Characters that tell a kernel's name, or a report's headline, from others."""


@dataclass(frozen=True, slots=True)
class KnownReport:
    """Reports that are set aside where they appear, counted, and named in the verdict.

    A lever whose kernels come from a library may name some as ``known_reports``, and the check
    itself adds those that it has established in the same run. Any other report fails.

    Attributes:
        tool: of compute-sanitizer.
        kernel: a part of the kernel's name, as the tool prints it; eight characters or more.
        reason: why it is none, in a few words.
        source: where that was established.
        headline: how the report begins, where it may name any kernel; words with ``|`` between.
        instead: whether what the tool looks for was looked for by other means, so that its reports
            have nothing to add.
    """

    tool: str
    kernel: str
    reason: str
    source: str
    headline: str = ""
    instead: bool = False

    def __post_init__(self) -> None:
        if len(self.kernel or self.headline) < LEAST_NAME:
            raise ValueError(f"a known report names at least {LEAST_NAME} letters of its kernel")

    @property
    def what(self) -> str:
        """Where the reports were, in words."""
        return f"on {self.kernel}" if self.kernel else f"({self.headline})"

    def covers(self, headline: str, kernel: str) -> bool:
        """Whether a report is one of these."""
        begins = headline.startswith(tuple(self.headline.split("|")))
        return begins and self.kernel in kernel


def known_reports(lever: Lever, setting: str) -> tuple[KnownReport, ...]:
    """What a lever says of sanitizers' reports at a setting; nothing by default.

    Raises:
        DefectiveLever: it would set aside reports of whichever kernel, or without the tool's sum.
    """
    asked = getattr(lever, "known_reports", None)
    found: tuple[KnownReport, ...] = () if asked is None else tuple(asked(setting))
    if any(not one.kernel or one.instead for one in found):
        raise DefectiveLever(
            f"{lever.name}={setting} would set aside reports that name any kernel",
            cure="name the library's kernel: headlines and other checks are the check's own",
        )
    return found
