"""What the parent and the server that starts measured processes say to each other."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Request:
    """One process to start.

    Attributes:
        task, result, stage, log: paths of its files.
        environment: variables to set beside the server's own.
        fresh: exec a new interpreter instead of forking the warm one.
        cores: cores to run on; empty leaves them as they are.
        limit_s: seconds after which its whole group is killed.
        memory_limit_bytes: address space, or None.
        born: ``time.monotonic()`` of the parent, which all processes of a boot share.
    """

    task: str
    result: str
    stage: str
    log: str
    limit_s: float
    born: float
    environment: dict[str, str] = field(default_factory=dict)
    fresh: bool = False
    cores: tuple[int, ...] = ()
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended.

    ``code`` is the exit code, or the negative signal; ``oom_kills`` counts the kernel's kills for
    lack of memory meanwhile; ``left`` counts processes that it left behind, which were killed.
    """

    pid: int
    code: int
    hung: bool
    cpu_s: float
    peak_host_bytes: int
    oom_kills: int
    left: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The server's first line: why it cannot fork (empty: it can), and how long it took."""

    not_forkable: str
    import_s: float
    pid: int
