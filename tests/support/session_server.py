"""A server's session store over a folder, with an engine that computes nothing, from one life to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from launcher.errors import MindnanoError
from launcher.server.request import MarkKind
from launcher.server.session_facts import Begun
from launcher.server.session_files import SessionFiles
from launcher.server.session_format import Origin
from launcher.server.sessions import SessionStore
from tests.support.fake_sessions import FakeState

ORIGIN = Origin(identity=b"i" * 32, template_sha256=b"t" * 32, kv="bf16", engine="ling3 0.1.0")


class OpenFiles(SessionFiles):
    """Known until it is closed, so that a test need not close the last one."""

    known: ClassVar[list[OpenFiles]] = []

    def __init__(
        self, folder: Path, *, limit_bytes: int, origin: Origin, report: Callable[[MindnanoError], None]
    ) -> None:
        super().__init__(folder, limit_bytes=limit_bytes, origin=origin, report=report)
        self.known.append(self)

    def close(self) -> None:
        super().close()
        self.known.remove(self)

    @classmethod
    def close_all(cls) -> None:
        """Closes what is open."""
        for files in list(cls.known):
            files.close()


@dataclass
class Server:
    """One life of a server over a folder."""

    folder: Path
    origin: Origin = ORIGIN
    limit: int = 1 << 20
    budget: int = 1 << 20
    now: float = 1000.0
    reports: list[MindnanoError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session = FakeState(padding=50)
        self.files = OpenFiles(self.folder, limit_bytes=self.limit, origin=self.origin, report=self.reports.append)
        self.store = SessionStore(self.session, budget=self.budget, files=self.files, clock=lambda: self.now)

    def ask(
        self,
        prompt: list[int],
        name: str | None = "a",
        owner: str = "",
        mark: int | None = None,
        system: int | None = None,
    ) -> Begun:
        """One request with its end; checkpoints at `system`, which others share, and at `mark`."""
        begun = self.store.begin(owner=owner, name=name, ids=prompt)
        assert self.session.tokens() == prompt[: begun.reused]
        if system is not None and system > begun.reused:
            self.session.eval(prompt[begun.reused : system])
            self.store.keep(MarkKind.SYSTEM)
            begun_at = system
        else:
            begun_at = begun.reused
        if mark is not None and mark > begun_at:
            self.session.eval(prompt[begun_at:mark])
            self.store.keep(MarkKind.TURN)
        self.session.eval(prompt[self.session.position :])
        self.store.end()
        return begun

    def restart(self, **changes: object) -> Server:
        self.store.close()
        return self.again(**changes)

    def again(self, **changes: object) -> Server:
        return replace(self, reports=[], **changes)  # type: ignore[arg-type]

    def saved(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir())
