"""What can go wrong before a drafter drafts."""


class BadDrafter(Exception):
    """A drafter cannot be used with this model. The message says why and what to do about it."""
