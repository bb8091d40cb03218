"""Exceptions of nibble. Each is also the built-in exception that callers of other libraries catch."""

__all__ = [
    "Cancelled", "CheckpointError", "DeviceError", "DTypeError", "EngineFull", "FileError", "ForkedError", "NibbleError",
    "OutOfMemoryError", "RecipeError", "ShapeError", "UsageError",
]


class NibbleError(Exception):
    """An error of nibble. The text is one line that names the subject and what to do."""


class UsageError(NibbleError, ValueError):
    """Options that are wrong, missing, or exclude each other."""


class ShapeError(NibbleError, ValueError):
    """An array whose size does not fit the operation."""


class DTypeError(NibbleError, TypeError):
    """The object is not an array, or its type is not supported."""


class RecipeError(NibbleError, ValueError):
    """A recipe or configuration that cannot be read or does not fit the model."""


class CheckpointError(NibbleError):
    """A model, tokenizer or quantized file whose content is wrong or not supported."""


class FileError(NibbleError, OSError):
    """A file or folder that is missing, exists already, or cannot be read or written."""


class DeviceError(NibbleError, RuntimeError):
    """A tensor on a device that this build does not compute on, or a GPU that failed."""


class OutOfMemoryError(NibbleError, MemoryError):
    """There is not enough memory."""


class EngineFull(NibbleError, RuntimeError):
    """The queue of a running model is full."""


class Cancelled(NibbleError):
    """The caller asked the job to stop. Jobs that document it keep finished work."""


class ForkedError(NibbleError, RuntimeError):
    """A model or job of the parent process was used after a fork. Use the start method "spawn"."""
