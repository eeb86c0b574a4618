"""What one of compute-sanitizer's tools said, and which of its findings count.

Each finding is a headline, ``========= Invalid __global__ write of size 4 bytes``, with indented
lines below it. It is one of three: a library's question to the driver, one that the lever or the
check knows of (:class:`levers.known_reports.KnownReport`), or real. A run is excused of its exit
code only where no finding is real and the tool's own sum is that of the others, so that nothing
unprinted passes. A tool that gives no sum at all (it did not attach to the process) gave no answer,
and where its sum is 0 and its code, too, what looks like a headline was printed by the process.
Where a tool's reports are known to say nothing and another check was made instead
(:attr:`levers.known_reports.KnownReport.instead`), that check is the answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from levers.known_reports import KnownReport

FOUND_ERRORS = 88
"""Exit code asked of the sanitizer where it found something."""

MOST_SHOWN = 1000
"""Findings that a tool prints before it only counts on."""

ENOUGH = 500
"""Findings after which a tool is ended. At the limit of what it prints some headlines are none of
the findings known here: initcheck showed 998 of FlashAttention-4 on an H200 and ran on."""

END = "levergate: cases end"
"""Printed by the process under the sanitizer when it is through."""

CASE = "levergate: case "
"""Begins the line that it prints before each case."""

FINDING = re.compile(
    r"^=+ ((?:Invalid|Misaligned|Uninitialized|Unused|Barrier error|Divergent|Program hit|Malloc"
    r"|Double free|Leaked|Host|Stack overflow|Hardware|Fatal|Race reported"
    r"|(?:Error|Warning): (?:Race|Potential))\b.*)$(?:(?:\n(?!=+ ).*)*\n=+ +(at .+))?",
    re.MULTILINE,
)
"""Headlines of findings, with the tool's next line where it says at which place; the process may
have printed some between. What else begins in the first column tells of the tool itself."""

ENQUIRY = re.compile(r"Program hit \w+ \(error \d+\).* on CUDA API call to cuGetProcAddress\w*\.")
"""A library that asks the driver for a function which this driver lacks (seen of the CUTLASS DSL's
runtime, 34 times at its import). The answer is an error code; nothing was run by it."""

AMID_A_LINE = re.compile(r"(?<=[^\n])(?=={9} )")
"""Where the tool begins to speak in the middle of a line of the process, whose output it shares: a
headline there is one as any other.
The process may have drawn a line of ``=`` itself."""

REMARK = re.compile(
    r"^=+ (?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY)(\S.*)$", re.MULTILINE
)
"""Any line in the tool's first column that is no frame of its report."""

MOST_REMARKS = 3
"""Other lines of a tool that are repeated where its sum does not add up."""

KERNEL = re.compile(r"\bat (?:0x[0-9a-f]+ in )?(.+?)(?:\+0x|$)")
"""The kernel in the headline of a race, or in the line below the headline of another finding."""

SUM = re.compile(r"\b(ERROR|RACECHECK) SUMMARY: (\d+)\b(?! errors? (?:was|were) not printed)")

UNPRINTED = ("Maximum number of hazards", "not printed", "Error buffer overflow")
"""Said by a tool that does not tell everything. An overflow is counted as a finding itself (257 of
256 that were shown, with 61,184 dropped, of initcheck on an H200)."""


class Report:
    """One tool's answer.

    Attributes:
        code: the sanitizer's exit code; None where it was ended after its time.
        finished: whether the cases came to their end.
        real: headlines of the findings that count.
        kernels: how many of them by the kernel that they name.
        set_aside: how many findings are known, by what is known of them.
        seconds: how long the tool ran.
        note: what a second look at its findings came to, in words.
        withdrawn: why its findings are no answer, if they are none.
        errors: findings that count; None where the tool gave no answer.
    """

    def __init__(
        self,
        code: int | None,
        text: str,
        known: Sequence[KnownReport] = (),
        *,
        seconds: float = 0.0,
        note: str = "",
        withdrawn: str = "",
    ) -> None:
        self.code, self.text = code, AMID_A_LINE.sub("\n", text)
        self.seconds, self.note, self.withdrawn = seconds, note, withdrawn
        self.finished = code is not None and END in text
        self.set_aside = dict.fromkeys(known, 0)
        self.questions = 0
        self.real: list[str] = []
        self.kernels: Counter[str] = Counter()
        sums = SUM.findall(self.text)
        self.claimed = sum(int(number) for _, number in sums)
        counting = [kind for kind, number in sums if int(number)]
        self._whole = len(set(counting)) == len(counting)
        self._summed = bool(sums)
        for headline, place in () if self._clean else FINDING.findall(self.text):
            self._take(headline, place)
        self.errors = self._errors()

    def knowing(self, more: Iterable[KnownReport], note: str = "") -> Report:
        """The same answer where more reports are known."""
        known = [*self.set_aside, *more]
        return Report(self.code, self.text, known, seconds=self.seconds, note=note)

    def without_answer(self, why: str) -> Report:
        """The same where nothing is to be held against it, and nothing for it either."""
        return Report(self.code, self.text, [*self.set_aside], seconds=self.seconds, withdrawn=why)

    def _take(self, headline: str, place: str) -> None:
        found = KERNEL.search(headline) or KERNEL.search(place)
        kernel = found.group(1) if found else ""
        one = next((k for k in self.set_aside if k.covers(headline, kernel)), None)
        if ENQUIRY.search(headline):
            self.questions += 1
        elif one is not None:
            self.set_aside[one] += 1
        else:
            self.real.append(f"{headline} {place}".strip())
            self.kernels[kernel] += 1

    def _errors(self) -> int | None:
        if self.withdrawn:
            return None
        if self.real:
            return max(len(self.real), self.claimed - self._harmless)
        if self._replaced:
            return max(0, self.claimed - self._harmless) if self._told else 0
        if self.code == FOUND_ERRORS:
            return 0 if self._excused else max(self.claimed, 1)
        return self.claimed if self.finished and self._summed else None

    @property
    def _clean(self) -> bool:
        """Whether the tool says itself that it found nothing, whatever the process has printed."""
        return self.code == 0 and self.finished and self._summed and not self.claimed

    @property
    def _harmless(self) -> int:
        return self.questions + sum(self.set_aside.values())

    @property
    def _excused(self) -> bool:
        """Whether the tool's own sum is explained; racecheck does not add the questions to it."""
        sums = {self._harmless, sum(self.set_aside.values())} - {0}
        return self.finished and self._whole and self._told and self.claimed in sums

    @property
    def _told(self) -> bool:
        """Whether every finding was printed."""
        left_out = any(words in self.text for words in UNPRINTED)
        return self._harmless < MOST_SHOWN and not left_out

    @property
    def _replaced(self) -> bool:
        """Whether all that the tool can say is known to say nothing, and was asked otherwise."""
        return any(known.instead and count for known, count in self.set_aside.items())

    @property
    def first_error(self) -> str:
        """The first finding that counts, or what does not add up."""
        if self.real:
            unexplained = self.claimed > len(self.real) + self._harmless
            return f"{self.real[0]}{self._remarks if unexplained else ''}"
        if not self.errors:
            return ""
        return (
            f"the tool counts {self.claimed}; it shows {sum(self.set_aside.values())} that are "
            f"known and {self.questions} questions to the driver{self._remarks}"
        )

    @property
    def _remarks(self) -> str:
        """What else the tool said, each line once: one may be a finding of a kind unknown here."""
        found = (one for one in REMARK.findall(self.text) if not FINDING.match(f"= {one}"))
        said = [*dict.fromkeys(found)][:MOST_REMARKS]
        return f"; it also says: {' | '.join(said)}" if said else ""

    @property
    def _where(self) -> str:
        """In which case the process was, if it said so."""
        begun = [line for line in self.text.splitlines() if line.startswith(CASE)]
        return f" (in {begun[-1].removeprefix(CASE)}, case {len(begun)})" if begun else ""

    def why_unfinished(self, limit_s: float) -> str:
        """In words, why there is no answer."""
        if self.withdrawn:
            return self.withdrawn
        if self.code is None and len(self.real) + self._harmless >= ENOUGH:
            return f"ended after {ENOUGH} reports"
        if self.code is None:
            return f"not through after {limit_s:.0f} s{self._where}"
        if self.finished and not self._summed:
            return f"gave no sum of its findings (code {self.code})"
        last = self.text.strip().splitlines()[-1:] or [""]
        return f"ended with code {self.code}: {last[0][:160]}"
