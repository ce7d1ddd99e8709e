"""The base of every error hal raises, and the one for configs."""

from __future__ import annotations


class HalError(Exception):
    """Base of all errors of hal; each subclass also subclasses the built-in a caller would already catch."""


class InputError(HalError, ValueError):
    """An argument that no model, device or engine could have; the text has the value and what is accepted."""


class UnknownLayerError(HalError, IndexError):
    """A model has no layer of that id; the text has the valid ones."""


class ConfigError(HalError, ValueError):
    """A config field is missing, ambiguous or impossible; the text names the field, the places looked at and the value."""
