"""The base class of the adapters of labelled arrays, and what they exchange with `labelled`."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from upsweep._arrays.libraries import labelled_library_of


@dataclass(frozen=True)
class Labels:
    """The arguments of a call without their labels, and the functions that give results theirs.

    `axis` is that of the arrays. `steps` labels a result of this `shape`, `state` one without the axis.
    """

    arrays: dict[str, Any]
    shape: tuple[int, ...]
    axis: Any
    steps: Callable[[Any], Any]
    state: Callable[[Any], Any]

    def wrap(self, result: Any) -> Any:
        """Label a result, or a pair of a result and a final state."""
        return (self.steps(result[0]), self.state(result[1])) if isinstance(result, tuple) else self.steps(result)


@dataclass(frozen=True)
class Conversion:
    """How data become arrays.

    With `missing`, missing values become NaN, else they are refused. `exact` refuses to convert integers to
    floats. `dates` allows datetime64 and timedelta64 beside numbers.
    """

    missing: bool = False
    exact: bool = False
    dates: bool = False

    @property
    def kinds(self) -> str:
        """The kinds of numpy's dtypes that are allowed."""
        return "biufcmM" if self.dates else "biufc"


NUMBERS = Conversion()


@dataclass(frozen=True)
class Operands:
    """The operands of a call, labelled or not: see `labelled.without_labels`. `lead` labels the results."""

    steps: Mapping[str, Any]
    states: Mapping[str, Any]
    lead: str
    conversion: Conversion


class LabelledLibrary(abc.ABC):
    """One library of labelled arrays. It is never imported here: its arrays exist only if the user has."""

    name: str
    wraps_any = False  # whether its arrays hold those of other libraries
    extends = False  # whether results can be longer than the argument

    def has(self, value: object) -> bool:
        """Whether this is one of the library's arrays."""
        return labelled_library_of(value) == self.name

    @abc.abstractmethod
    def values(self, value: Any, name: str, conversion: Conversion) -> Any:
        """Return the data without labels; raise where it is no array of numbers or has missing values."""

    def check_labels(self, named: dict[str, Any]) -> None:  # noqa: B027  # without an index there is nothing to check
        """Raise if the steps of these have different labels."""

    def check_times(self, x: Any, times: Any, axis: int) -> None:  # noqa: B027  # as above
        """Raise if the times, named so, have other labels than this axis of x."""

    def data(self, operands: Operands, axis: Any, is_scan: bool) -> tuple[dict[str, Any], Any]:
        """Return the labelled operands of a call without labelled results as arrays, and the number of the axis.

        The call is a scan of an array without labels, or a count, whose first operand has all axes.
        """
        named = {name: value for name, value in operands.steps.items() if self.has(value)}
        self.check_labels(named)
        named |= {name: value for name, value in operands.states.items() if self.has(value)}
        return {name: self.values(value, name, operands.conversion) for name, value in named.items()}, axis

    @abc.abstractmethod
    def unwrap(self, operands: Operands, axis: Any) -> Labels:
        """Return all operands without labels, arranged to broadcast; raise where labels differ."""


def raise_labels_differ(name: str, lead: str, remedy: str) -> NoReturn:
    """Raise ValueError for an operand with other labels than the leading one."""
    raise ValueError(
        f"{name}: has other labels than {lead}; match them, {remedy}, or go by position with {name}.to_numpy()"
    )
