from collections.abc import Callable
from typing import Any

class Functions:
    """The functions of the loaded library, by their addresses."""

    def __init__(self, address: Callable[[str], int | None], check: Callable[[int], int]) -> None: ...

class TensorCalls:
    """The calls of one array library."""

    def __init__(
        self,
        *,
        load: Callable[[], Any],
        check_device: Callable[[int], None],
        exchange: object,
        dtypes: dict[Any, int],
        plain_types: frozenset[type],
        watchers: tuple[Callable[[], object], ...],
        forward_ad: Any,
        is_grad_enabled: Callable[[], bool] | None,
        is_neg: Callable[[Any], bool] | None,
        stream: Callable[[int], int] | None,
        workspace: Callable[[int, Any], tuple[int, object]],
        empty_like: Callable[..., Any],
        empty: Callable[..., Any],
        empty_here: Callable[..., Any] | None,
        increment_version: Callable[[tuple[Any]], None],
        device_type: int = 2,
    ) -> None: ...
    def scan_plain(
        self,
        x: Any,
        gates: Any,
        gamma: float,
        axis: int | None,
        reverse: bool,
        flush: bool,
        out: Any,
        record: Callable[..., Any] | None,
        initial: Any = None,
        exclusive: bool = False,
        return_final: bool = False,
    ) -> Any:
        """The scan of tensors of one dtype, with the final state if asked for, or None for other arguments."""

    def lines_backward(self, g: Any, gates: Any, y: Any, reverse: bool) -> tuple[Any, Any] | None:
        """The gradients of such a scan's summands and gates; None: there is no kernel for them."""

    def count(
        self, keys: Any, weights: Any, minlength: Any, length: Any, invalid: Any, deterministic: bool, most: int
    ) -> Any:
        """The counts of 1-D keys, or the sums of their weights, or None for other arguments."""

    def histc(self, x: Any, n_bins: int, low: float, high: float, widest: float) -> Any:
        """The counts of a contiguous tensor of floats by torch's rule, or None for other arguments."""

    def extremes(self, x: Any) -> tuple[float, float] | None:
        """The least and the largest element of such a tensor; None where not all are finite, or for others."""

    def histogram(
        self, x: Any, first: float, last: float, n_bins: int, step: float, step_code: int, edge_code: int
    ) -> tuple[Any, Any] | None:
        """The counts by numpy's rule and the edges, or None for other arguments."""

    def signature(self, x: Any, gates: Any) -> Any:
        """What a scan of such tensors of floats depends on besides the numbers, to compare; None for others."""

    def scan(
        self,
        x: Any,
        gates: Any,
        gamma: Any,
        factor: complex,
        initial: Any,
        reset: Any,
        out: Any,
        final_state: Any,
        *,
        axis: int,
        reverse: bool,
        exclusive: bool,
        window: int,
    ) -> None:
        """Start a scan of tensors that the caller has checked."""

    def reduce(
        self,
        x: Any,
        gates: Any,
        gamma: Any,
        factor: complex,
        initial: Any,
        reset: Any,
        multiplier: Any,
        value: Any,
        dropped: Any,
        *,
        axis: int,
        reverse: bool,
    ) -> None:
        """Start to reduce steps to an aggregate, whose parts lack the axis."""

class CupyCalls(TensorCalls):
    """The calls of cupy."""
