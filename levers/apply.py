"""Put a given set of levers into a user's own program.

The ON set is an argument: who reads it from stored verdicts passes it in. A kill switch in the
environment wins over the set, so that an operator can turn a lever off without a change of code::

    with apply({"attention": site}, {"fa2_nsplits_cap": "auto"}) as on:
        serve()
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from levers import catalog
from levers.base import OFF, Lever, Site, claims, engaged


@contextlib.contextmanager
def apply(
    sites: Mapping[str, Site],
    settings: Mapping[str, str],
    *,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Mapping[str, str]]:
    """Engage levers on the program's sites while the body runs, and always restore them.

    All names, settings, kill switches and claims are checked before the first change. The levers
    are enabled in the order of ``settings`` and undone in reverse.

    Args:
        sites: the program's sites by name.
        settings: the ON set: lever name to setting.
        variables: where kill switches are looked up; the process's environment by default.

    Yields:
        What is on: lever name to setting, after the kill switches.

    Raises:
        UnknownName: no such lever.
        BadSetting: a setting, or a kill switch's value, that the lever does not take.
        LeverConflict: two levers claim one site, or the program lacks a site.
        NotRestored: a lever left a site changed.
    """
    known = [(catalog.get(name), setting) for name, setting in settings.items()]
    chosen = [(lever, switched(lever, setting, variables)) for lever, setting in known]
    on = [(lever, setting) for lever, setting in chosen if setting != OFF]
    claims([lever for lever, _ in on])
    with contextlib.ExitStack() as stack:
        for lever, setting in on:
            stack.enter_context(engaged(lever, sites, setting))
        yield {lever.name: setting for lever, setting in on}


def switched(lever: Lever, setting: str, variables: Mapping[str, str] | None = None) -> str:
    """The setting that holds: the kill switch's where it is set, else the one given, both checked.

    Raises:
        BadSetting: not a setting of this lever.
    """
    found = (os.environ if variables is None else variables).get(lever.env, "")
    return lever.settings.check(lever.name, found or setting)
