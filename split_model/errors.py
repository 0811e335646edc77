"""What can go wrong between a model's name and its weights in memory.

ModelError
├── UnsupportedModel   the architecture, or one of its options, cannot be computed exactly
├── BadCheckpoint      the files are damaged, incomplete or contradict the config
└── ModelNotFound      neither a local folder nor a model that the hub gives us
"""


class ModelError(Exception):
    """A model cannot be used. The message says what to do about it."""


class UnsupportedModel(ModelError):
    """The config asks for something that this code cannot compute exactly; the message names the field."""


class BadCheckpoint(ModelError):
    """A checkpoint's files are damaged, incomplete, unsafe or do not fit the config."""


class ModelNotFound(ModelError):
    """No such local folder, and the hub did not give the model."""
