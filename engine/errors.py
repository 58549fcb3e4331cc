"""The error of the engine's build."""


class BuildError(Exception):
    """The engine cannot be built: what went wrong, and in `hint` what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UnreachableError(BuildError):
    """A source is nowhere to be had: not in the named folder, not in the cache, not on the network."""
