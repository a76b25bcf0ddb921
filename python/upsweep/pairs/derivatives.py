"""The symbolic derivatives of a LazyTensor, by KeOps' names: formulas again."""

from __future__ import annotations

from typing import Any

from upsweep.pairs.operations import Operations

__all__ = ["Derivatives"]


class Derivatives(Operations):
    """Gradients and their kin, of a formula in one of its variables."""

    __slots__ = ()

    def grad(self, other: Any, gradin: Any) -> Any:
        """The gradient of x in the variable `other`, applied to `gradin` of x's dim: a vector of other's dim.

        Examples
        --------
        >>> import numpy as np
        >>> from upsweep import Vi, Vj
        >>> x, y = Vi(np.array([[1.0], [2.0]])), Vj(np.array([[0.0], [3.0]]))
        >>> x.sqdist(y).grad(x, 1).sum(axis=1)
        array([[-2.],
               [ 2.]])
        """
        wanted, cotangent = self._variable(other), self._lift(gradin)
        if cotangent.ndim != self.ndim:
            raise ValueError(f"gradin: expected dim {self.ndim}, as {self._text(80)} has, got {cotangent.ndim}")
        args = (self, wanted, cotangent)
        return self._new("grad", args, (), wanted.ndim, self._join("grad", args))

    def grad_matrix(self, other: Any) -> Any:
        """The gradients of all features of x in the variable `other`, one after the other."""
        args = (self, self._variable(other))
        return self._new("grad_matrix", args, (), self.ndim * args[1].ndim, self._join("grad_matrix", args))

    def diff(self, other: Any, diffin: Any) -> Any:
        """The derivative of x along `diffin`, a change of the variable `other`."""
        wanted, tangent = self._variable(other), self._lift(diffin)
        if tangent.ndim != wanted.ndim:
            raise ValueError(f"diffin: expected dim {wanted.ndim}, as the variable has, got {tangent.ndim}")
        args = (self, wanted, tangent)
        return self._new("diff", args, (), self.ndim, self._join("diff", args))

    def divergence(self, var: Any) -> Any:
        """The divergence of x in a variable of its dim."""
        args = (self, self._variable(var))
        if args[1].ndim != self.ndim:
            raise ValueError(f"var: expected dim {self.ndim}, as {self._text(80)} has, got {args[1].ndim}")
        return self._new("divergence", args, (), 1, self._join("divergence", args))

    def laplacian(self, var: Any) -> Any:
        """The Laplacian of x, of dim 1, in a variable."""
        if self.ndim != 1:
            raise ValueError(f"laplacian: expected a formula of dim 1, got {self.ndim}: {self._text(80)}")
        args = (self, self._variable(var))
        return self._new("laplacian", args, (), 1, self._join("laplacian", args))

    def _variable(self, other: Any) -> Any:
        if not isinstance(other, Operations) or other._op is not None:
            raise ValueError(
                "other: expected a LazyTensor that is a variable: of an array, and no result of operations"
            )
        return other
