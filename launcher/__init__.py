"""The product's face: options, checks, chat. Imports nothing from its siblings."""

__version__ = "0.1.0"
