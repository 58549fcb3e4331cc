"""What the built-in model was trained within."""

from typing import Final

ROW_TOKENS: Final = 320
"""Tokens of a row of training: no conversation of its lessons was longer."""
