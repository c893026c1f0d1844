"""Weights as exact integers: the only form in which they may decide the order of samples."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from conceptloader.errors import ConfigError
from conceptloader.order.reference import exact_weight, smallest_integers

MIN_PARTS = 1 << 40


def exact_weights(weights: Mapping[str, float], where: str) -> dict[str, int]:
    """Weights as the smallest integers in the same proportion, by name in sorted order.

    0.7 and 0.3 are exactly 7 and 3: see reference.exact_weight. where: their key, for errors; NAME stands for a name.

    Raises:
        ConfigError: no weights; one that is zero, negative, NaN, infinite or below 2**-40 of the total.
    """
    where = where if "NAME" in where else f"{where}.NAME"
    if not weights:
        fix = f"set {where} to a number above 0"
        raise ConfigError(where.removesuffix(".NAME"), "no weights", "a weight for at least one dataset", fix)
    exact: dict[str, Any] = {}
    for name in sorted(weights):
        weight, key = weights[name], where.replace("NAME", name)
        if isinstance(weight, bool) or not isinstance(weight, (int, float, Fraction)):
            raise ConfigError(key, repr(weight), "a number", f"set {key} to a number above 0")
        if isinstance(weight, float) and not math.isfinite(weight):
            raise ConfigError(key, str(weight), "a finite number above 0", f"set {key} to a number above 0")
        if weight <= 0:
            raise ConfigError(key, str(weight), "a number above 0", f"omit {key} if it is not drawn")
        exact[name] = weight if type(weight) is int else exact_weight(weight)
    total = sum(exact.values())
    least = -(-total // MIN_PARTS)  # an integer, so that integers, as most are, are compared as such
    for name, share in exact.items():
        if share < least and share * MIN_PARTS < total:
            raise ConfigError(
                where.replace("NAME", name),
                f"{weights[name]}, below 2**-40 of the total",
                "at least 2**-40 of the total",
                f"raise {where.replace('NAME', name)}, or remove the dataset",
            )
    if all(type(weight) is int for weight in exact.values()):  # no fraction is made of them
        common = math.gcd(*exact.values())
        return {name: weight // common for name, weight in exact.items()}
    return smallest_integers(exact)


def tempered(weights: Mapping[str, float], temperature: float) -> dict[str, float]:
    """Weight ** (1 / temperature): 1 keeps the proportions, above 1 evens them out (the usual choice for languages).

    Results are rounded to 12 digits, so that the last bit of a platform's `pow` cannot change an order.

    Raises:
        ConfigError: a temperature that is not a finite number above 0.
    """
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(
            "temperature", str(temperature), "a finite number above 0", "set temperature above 0, such as 1"
        )
    if temperature == 1:
        return dict(weights)
    largest = max(weights.values())
    return {name: float(f"{(weight / largest) ** (1 / temperature):.12g}") for name, weight in weights.items()}
