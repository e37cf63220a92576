"""What a kernel is, and how kernels are added, multiplied and given columns of their own."""

import dataclasses
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..params import Number, positive, real

__all__ = ["AbstractKernel", "InUnits", "On", "Positive", "Product", "Scale", "Sum", "check_columns"]

Scale = Float[Number, ""] | Float[Number, " D"]
Positive = Float[Number, ""]


class AbstractKernel(eqx.Module):
    """k(x, z) for all pairs of rows."""

    @abstractmethod
    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)], shape [N, M]."""

    @abstractmethod
    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """[k(xᵢ, xᵢ)], shape [N]."""

    def __add__(self, other: "AbstractKernel") -> "Sum":
        return Sum((self, other))

    def __mul__(self, other: "AbstractKernel") -> "Product":
        return Product((self, other))

    def on(self, *columns: int) -> "On":
        """The same kernel, seeing only the given input columns."""
        return On(self, columns)

    def ard(self, D: int) -> "AbstractKernel":
        """The same kernel with a lengthscale of its own for each of D columns, all as they are now (automatic relevance
        determination). A kernel without lengthscales is itself."""
        return self

    def inner_columns(self, D: int) -> int:
        """How many of D columns the kernels that this one is made of see. Raises ValueError where there are too few."""
        return D


class Sum(AbstractKernel):
    """Σ k."""

    kernels: tuple[AbstractKernel, ...]

    def ard(self, D: int) -> AbstractKernel:
        """Of every summand."""
        return Sum(tuple(k.ard(D) for k in self.kernels))

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)]."""
        return sum((k(X, Z) for k in self.kernels[1:]), self.kernels[0](X, Z))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Σ k(x, x)."""
        return sum((k.diag(X) for k in self.kernels[1:]), self.kernels[0].diag(X))


class Product(AbstractKernel):
    """Π k."""

    kernels: tuple[AbstractKernel, ...]

    def ard(self, D: int) -> AbstractKernel:
        """Of every factor."""
        return Product(tuple(k.ard(D) for k in self.kernels))

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)]."""
        return _product([k(X, Z) for k in self.kernels])

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Π k(x, x)."""
        return _product([k.diag(X) for k in self.kernels])


def _product(factors):
    out = factors[0]
    for factor in factors[1:]:
        out = out * factor
    return out


class On(AbstractKernel):
    """`kernel` on the given input columns (active dimensions)."""

    kernel: AbstractKernel
    columns: tuple[int, ...] = eqx.field(static=True)

    def ard(self, D: int) -> AbstractKernel:
        """One lengthscale for each of its own columns, however many there are in all."""
        return On(self.kernel.ard(len(self.columns)), self.columns)

    def inner_columns(self, D: int) -> int:
        """As many as it has."""
        if any(not -D <= column < D for column in self.columns):
            raise ValueError(f"a kernel is on columns {self.columns}, but the inputs have {D}, which are 0 to {D - 1}")
        return len(self.columns)

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)] of the chosen columns."""
        return self.kernel(self._chosen(X), self._chosen(Z))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """k(x, x) of the chosen columns."""
        return self.kernel.diag(self._chosen(X))

    def _chosen(self, X):
        self.inner_columns(X.shape[1])  # JAX would take another column in the place of one that is not there
        return X[:, self.columns]


class InUnits(AbstractKernel):
    """`kernel` of scale ∘ x + mean: standardised inputs, seen in the units of a person's table.

    So that pseudo-points move in standard deviations, whatever the columns are, and the kernel's numbers are a
    person's. `mean` and `scale`, [D], are not learned.
    """

    kernel: AbstractKernel
    mean: Float[Number, " D"] = real("learned")
    scale: Float[Number, " D"] = positive(learn="learned")
    learned: bool = eqx.field(static=True, default=False)

    def ard(self, D: int) -> AbstractKernel:
        """Of the kernel inside."""
        return InUnits(self.kernel.ard(D), self.mean, self.scale)

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)] of the rows in their units."""
        return self.kernel(X * self.scale + self.mean, Z * self.scale + self.mean)

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """k(x, x) of the rows in their units."""
        return self.kernel.diag(X * self.scale + self.mean)


def check_columns(kernel: AbstractKernel, D: int) -> None:
    """Raises ValueError, in one sentence, where the kernel does not fit inputs of D columns: a number a column (a field
    of type `Scale`) for another number of them, a column that is not there, a result of another shape than [N, M]."""
    for part, columns in _parts(kernel, D):
        for name in (field.name for field in dataclasses.fields(part) if field.type == Scale):
            shape = np.shape(getattr(part, name))
            if shape not in ((), (columns,)):
                raise ValueError(
                    f"the kernel {type(part).__name__} has {np.prod(shape, dtype=int)} numbers in {name}, but it sees "
                    f"{columns} column{'s' * (columns != 1)}: give one number for all, or one for each of them"
                )
    rows = [jax.ShapeDtypeStruct((n, D), jnp.result_type(float)) for n in (2, 3)]
    try:
        shapes = jax.eval_shape(kernel, *rows).shape, jax.eval_shape(kernel.diag, rows[0]).shape
    except (TypeError, ValueError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the kernel {type(kernel).__name__} cannot be computed on {D} columns: {reason}") from error
    if shapes != ((2, 3), (2,)):
        raise ValueError(
            f"the kernel {type(kernel).__name__} gives an array {list(shapes[0])} for 2 and 3 rows, and "
            f"{list(shapes[1])} for its diagonal at 2 rows: it must give [2, 3] and [2]"
        )


def _parts(kernel: AbstractKernel, D: int) -> list[tuple[Any, int]]:
    """The kernel and all that it is made of, each with the number of columns that it sees."""
    columns, found = kernel.inner_columns(D), [(kernel, D)]
    for field in dataclasses.fields(kernel):
        value = getattr(kernel, field.name)
        for child in value if isinstance(value, tuple) else (value,):
            found += _parts(child, columns) if isinstance(child, AbstractKernel) else []
    return found
