"""Rules for single config values, shared by the options of several analyses."""

from normscope.errors import InputError


def at_least(minimum: int, key: str, value: int) -> None:
    """Check a whole number.

    Raises:
        InputError: If it is below the minimum.
    """
    if value < minimum:
        raise InputError(f"{key}={value}: expected a whole number of at least {minimum}")


def pair_budget(key: str, value: int) -> None:
    """Check the number of pairs kept for an exact rank correlation.

    Raises:
        InputError: If it is negative.
    """
    if value < 0:
        raise InputError(f"{key}={value}: expected a number of pairs of at least 0; 0 estimates")
