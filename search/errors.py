"""Errors a user can meet. Each names the parameter and says what to do."""


class StepsearchError(Exception):
    """Base of all errors that stepsearch raises on purpose."""


class ConfigurationError(StepsearchError, ValueError):
    """A setting is unknown, missing or contradicts another one."""


class EmptyQuestionError(StepsearchError, ValueError):
    """There is nothing to solve."""


class ModelNotFoundError(StepsearchError):
    """A model, adapter or tokenizer could not be loaded from where it was looked for."""


class PolicyError(StepsearchError):
    """The policy could not produce a continuation."""


class VerifierError(StepsearchError):
    """A verifier could not be loaded, or failed its self-check."""


class UnjudgedError(StepsearchError, ValueError):
    """Whether a step is wrong was asked, but nobody judged it."""


class TraceError(StepsearchError):
    """A trace cannot be read or does not fit what it is used for."""


NOT_STARTED = (ConfigurationError, ModelNotFoundError)
"""Errors that a correction of the command mends: nothing was sampled or scored yet."""
