"""Triton's interpreter without its walk over the whole language at every call of a function.

Whenever a kernel calls a function, the interpreter looks through all members of ``triton.language``
for what it must replace. That took half of the time of the interpreted kernels. Here the names of
those members are noted once, and only these are looked at; what they are replaced with, and when,
stays Triton's.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


def look_through_the_language_once(interpreter: ModuleType) -> None:
    """Note the names in ``triton.runtime.interpreter``; before any kernel of this process runs."""
    tl, is_builtin = interpreter.tl, interpreter.tl.core.is_builtin
    owners = (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base)
    names = {
        owner: [n for n in dir(owner) if is_builtin(getattr(owner, n, None))] for owner in owners
    }
    walk = interpreter._patch_builtin

    def patch_builtin(owner: Any, builder: Any, scope: Any) -> None:
        if owner not in names:
            walk(owner, builder, scope)
            return
        for name in names[owner]:
            member = getattr(owner, name)
            if is_builtin(member):
                interpreter._patch_attr(owner, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin
