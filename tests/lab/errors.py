"""The one error of the lab: a sentence that a person can act on."""


class LabError(Exception):
    """What went wrong and what to do about it, in one sentence; never a traceback for the user."""
