"""What witness and parity were taken with: code, levers and variables, noted beside them.

What they showed holds for that and for nothing else. A run that goes on with other code or other
variables takes both again, or, once it has samples, is refused.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from experiments.code_watch import CodeWatch
from experiments.frozen import FrozenEnvironment
from experiments.home import CHECKOUT, Home
from experiments.parity.cache import FOLDER, ParityCache, code_digest, code_files
from experiments.prepare import Comparison
from experiments.records import Environment
from experiments.requests import Listener
from experiments.spec import NO_LEVER
from experiments.spool import Spool
from experiments.values import FrozenMap, Value, digest_of
from experiments.workloads import catalog as workloads
from experiments.workloads.base import Workload
from levers import catalog
from levers.errors import BadParameter
from levers.source import module_files, modules_digest, source_digest, source_files

NOTE = "bound"

OF_A_LOGIN = re.compile(
    r"(_|PWD|OLDPWD|SHLVL|COLUMNS|LINES|STY|DISPLAY|WINDOWID|MAIL|HOSTNAME|PS\d|PROMPT_COMMAND)$"
    r"|(LS_COLORS|EDITOR|VISUAL|PAGER|NO_COLOR|FORCE_COLOR|COLORTERM|MAKEFLAGS|MAKELEVEL|MFLAGS)$"
    r"|(XDG_RUNTIME_DIR|INVOCATION_ID|JOURNAL_STREAM|LEVERGATE_HOME|LEVERGATE_LOCKS|VIRTUAL_ENV)$"
    r"|(TMPDIR|TEMP|TMP|OUT)$|KUBERNETES_|POD_|CONTAINER_"
    r"|SSH_|TERM(INFO|CAP|_PROGRAM|_PROGRAM_VERSION|_SESSION_ID)?$|TMUX(_PANE)?$|VTE_|WAYLAND_|VSCODE_"
    r"|XDG_SESSION_|DBUS_|GPG_|LESS(OPEN|CLOSE|CHARSET|HISTFILE|KEY)?$|PYTEST_|SLURM_|VIRTUAL_ENV_"
    r"|HIST(FILE|SIZE|CONTROL|FILESIZE|IGNORE|TIMEFORMAT)$"
)
"""Variables of a terminal, a login, a job, a machine or a home, and of where results go (``OUT``
of the GPU runs): they differ where the work is the same."""

BOUND_ELSEWHERE = re.compile(
    r"(CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|LEVERGATE_LEVERS|LEVERGATE_WORKLOADS)$"
)
"""Variables that only say which device, levers and workloads: what they name is bound by its kind
or its code, so that what passed on one device is found again on another of the kind."""

CREDENTIAL = re.compile(
    r".*(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_KEY|ACCESS_KEY|KEY_ID)$", re.IGNORECASE
)
"""Variables that only let their holder in; they are renewed from login to login. What else ends so
and steers a lever is to be renamed."""

OF_A_LEVER = "LEVER_"
"""Begins the variable of a lever, which counts however it ends."""

TOOLS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "nvcc", "ptxas", "ninja")
"""What a measured process may start: of ``PATH`` it counts which of each is found."""

HINT_DIGITS = 4
"""Hex digits by which a variable that changed is named: too few to find its value by."""


class Binding(Value):
    """Digests of all that witness and parity depend on beside the spec, device and versions.

    Attributes:
        code: of the battery, the built-in levers and workloads.
        workload: of the modules of the workload, which may be a plug-in.
        levers: by name, of each lever that is on in any arm or on any model of the tokens.
        variables: of all variables of the processes.
        hints: by name, the beginning of each variable's digest.
    """

    code: str
    workload: str
    levers: FrozenMap[str]
    variables: str
    hints: FrozenMap[str]

    def unlike(self, then: Binding) -> str:
        """What is not as it was then, in words; empty where nothing is."""
        return ", ".join(self._parts(then))

    def _parts(self, then: Binding) -> Iterator[str]:
        yield from (f"lever {name}" for name in _apart(self.levers, then.levers))
        if self.workload != then.workload:
            yield "the workload's code"
        if self.code != then.code:
            yield f"the code of the parity battery, the levers or the workloads in {CHECKOUT}"
        if self.variables != then.variables:
            yield f"the variable {' and '.join(_apart(self.hints, then.hints)) or '(unnamed)'}"


def _apart(now: Mapping[str, str], then: Mapping[str, str]) -> list[str]:
    return [name for name in sorted({*now, *then}) if now.get(name) != then.get(name)]


def binding_of(comparison: Comparison, variables: Mapping[str, str]) -> Binding:
    """The binding of a comparison as it is now.

    Args:
        comparison: what is compared.
        variables: of all its processes, as frozen.
    """
    values, names = lasting(variables), (comparison.spec.lever, *comparison.spec.others)
    return Binding(
        code=code_digest(CHECKOUT),
        workload=workload_digest(comparison.spec.workload, comparison.workload),
        levers={name: source_digest(catalog.get(name)) for name in names if name != NO_LEVER},
        variables=digest_of(repr(sorted(values.items()))),
        hints={name: digest_of(value)[:HINT_DIGITS] for name, value in values.items()},
    )


def lasting(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables on which results may depend.

    ``PATH`` counts as the tools that it finds, ``PYTHONPATH`` without the checkout, whose code is
    bound by itself.
    """
    kept = {
        name: value
        for name, value in variables.items()
        if name.startswith(OF_A_LEVER)
        or not any(left.match(name) for left in (OF_A_LOGIN, CREDENTIAL, BOUND_ELSEWHERE))
    }
    if path := kept.get("PYTHONPATH"):
        own = str(CHECKOUT)
        kept["PYTHONPATH"] = os.pathsep.join(one for one in path.split(os.pathsep) if one != own)
    if path := kept.get("PATH"):
        kept["PATH"] = " ".join(str(shutil.which(tool, path=path)) for tool in TOOLS)
    return kept


def workload_digest(name: str, workload: Workload) -> str:
    """Digest of the modules that make up a workload: where it is named, its class, its opener."""
    return modules_digest(_modules(name, workload))


def _modules(name: str, workload: Workload) -> set[str]:
    targets = (workloads.known().get(name, ""), workload.opener)
    named = (target.partition(":")[0] for target in targets)
    return {type(workload).__module__, *filter(None, named)}


def watched(frozen: FrozenEnvironment, *comparisons: Comparison) -> FrozenEnvironment:
    """The environment with a watch over the code of its processes."""
    return replace(frozen, watch=watch_of(*comparisons))


def watch_of(*comparisons: Comparison) -> CodeWatch:
    """A watch over all code that processes of these comparisons may load, as it is now."""
    files = dict(code_files(CHECKOUT))
    for one in comparisons:
        files |= dict(module_files(_modules(one.spec.workload, one.workload)))
        for name in (one.spec.lever, *one.spec.others):
            if name != NO_LEVER:
                files |= dict(source_files(catalog.get(name)))
    return CodeWatch.of(files.items())


def cache_of(
    home: Home, here: Environment, comparison: Comparison, frozen: FrozenEnvironment
) -> ParityCache:
    """The kept results that hold for a comparison as it is now."""
    now = binding_of(comparison, frozen.variables)
    stack = f"{here.device_kind} {here.stack} {now.workload} {now.variables}"
    return ParityCache(home.root / FOLDER, stack)


def bind(
    spool: Spool,
    comparison: Comparison,
    variables: Mapping[str, str],
    listener: Listener,
    *,
    timed: bool = False,
) -> None:
    """Note what witness and parity are taken with; drop those that were taken with something else.

    Args:
        spool: the run on disk; this process is its writer.
        comparison: what is compared.
        variables: of all its processes, as frozen.
        listener: told what is dropped and why.
        timed: whether there are samples beside those of the run itself, for which both were taken.

    Raises:
        BadParameter: they were taken with something else, and there are samples.
    """
    record, noted = spool.record(), spool.noted(NOTE)
    now = binding_of(comparison, variables)
    found = bool(record.witnesses or record.parity or record.failures)
    timed = timed or bool(record.samples)
    if found and timed:
        refuse_changed(noted, now, record.run_id)
    why = _why_again(noted, now) if found else ""
    if why and timed:
        _warn(spool, listener, f"{why}; it goes on, since it has samples")
    elif why:
        spool.forget(why)
        _warn(spool, listener, f"{why}: witness and parity are taken again")
    if why or _read(noted) != now:
        spool.note(NOTE, now.model_dump(mode="json"))


def refuse_changed(noted: Mapping[str, Any] | None, now: Binding, run_id: str) -> None:
    """Refuse to go on with samples whose parity was shown of something else.

    Raises:
        BadParameter: what has changed, and the cure.
    """
    then = _read(noted)
    if then is not None and (apart := now.unlike(then)):
        raise BadParameter(
            f"{apart} changed since witness and parity of {run_id} were taken, and it has samples",
            cure="go on with it as it was, or start a new run: samples of two versions are never "
            "mixed",
        )


def _why_again(noted: Mapping[str, Any] | None, now: Binding) -> str:
    """Why what is there may not hold any longer; empty where it does."""
    then = _read(noted)
    if then is None:
        return "it was not noted with which code and variables this run was checked"
    apart = now.unlike(then)
    return f"{apart} changed since this run was checked" if apart else ""


def _read(noted: Mapping[str, Any] | None) -> Binding | None:
    """The binding of a note; None where there is none of this version."""
    if noted is None:
        return None
    try:
        return Binding.model_validate({k: v for k, v in noted.items() if k != "name"})
    except ValidationError:
        return None


def _warn(spool: Spool, listener: Listener, text: str) -> None:
    spool.warning(text)
    listener.on_warning(text)
