"""What a kernel is, and how kernels are added, multiplied and given columns of their own."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from functools import reduce
from numbers import Real
from operator import add, mul
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..params import Number, Readable, positive, real

__all__ = [
    "AbstractKernel",
    "Constant",
    "InUnits",
    "On",
    "Positive",
    "Product",
    "Scale",
    "Sum",
    "by_equality",
    "check_columns",
    "kinds",
    "lengthscales",
    "refuse_missing",
]

Scale = Float[Number, ""] | Float[Number, " D"]
Positive = Float[Number, ""]


class AbstractKernel(Readable):
    """k(x, z) for all pairs of rows.

    Kernels are added and multiplied with + and *; a number c > 0 stands for `Constant(c)`. So `2.0 * k` has twice the
    variance, and `k + 0.1` adds an unknown constant of prior variance 0.1 (it is no noise: that belongs to the
    likelihood). The constant is learned like any other number.
    """

    __array_ufunc__ = None  # so that NumPy's numbers and arrays leave `x * kernel` to `__rmul__`
    precedence: ClassVar[int] = 2  # of the expression that shows it: 0 is a sum, 1 a product
    equality: ClassVar[bool] = False  # whether it asks whether inputs are equal

    @abstractmethod
    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)], shape [N, M]."""

    @abstractmethod
    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """[k(xᵢ, xᵢ)], shape [N]."""

    def prepare(self, Z: Float[Array, "M D"]) -> Any:
        """What `from_prepared` reads of rows Z that many calls share. Here that is Z itself."""
        return Z

    def from_prepared(self, prepared: Any, X: Float[Array, "N D"]) -> Float[Array, "M N"]:
        """[k(zᵢ, xⱼ)] for `prepared = self.prepare(Z)`: the same numbers as `self(Z, X)`."""
        return self(prepared, X)

    def __add__(self, other: Any) -> "Sum":
        return Sum((self, _operand(other)))

    def __radd__(self, other: Any) -> "AbstractKernel":
        if isinstance(other, int) and other == 0:  # where Python's `sum` begins
            return self
        return Sum((_operand(other), self))

    def __mul__(self, other: Any) -> "Product":
        return Product((self, _operand(other)))

    def __rmul__(self, other: Any) -> "Product":
        return Product((_operand(other), self))

    def __pow__(self, other: Any) -> "Product":
        raise TypeError("a kernel cannot be raised to a power: write k * k, whose two factors are learned separately")

    def times(self, factor: float) -> "AbstractKernel":
        """c k for a number c > 0. Where `variance` is a factor of a kernel, its class says `times = with_variance`."""
        return Product((Constant(factor), self))

    def on(self, *columns: int) -> "On":
        """The same kernel of the given input columns alone."""
        return On(self, columns)

    def ard(self, D: int) -> "AbstractKernel":
        """The same kernel with one lengthscale for each of D columns, at its present values (automatic relevance
        determination). A kernel without lengthscales stays as it is."""
        return self

    @property
    def scales(self) -> tuple[Any, Any] | None:
        """(lengthscale, variance) of a kernel that has two fields of these names; None of any other."""
        known = {"lengthscale", "variance"} <= _fields(self).keys()
        return (self.lengthscale, self.variance) if known else None  # pyright: ignore[reportAttributeAccessIssue]

    def widths(self, D: int) -> np.ndarray | None:
        """A lengthscale for each of D columns; None of a kernel without `scales`."""
        return None if self.scales is None else np.broadcast_to(np.asarray(self.scales[0], float), (D,))

    def beside(self, make: Callable[[Any], "AbstractKernel"], lengthscale: Any) -> "AbstractKernel":
        """`make(lengthscale)`, a kernel for the inputs of this one. `lengthscale` [D] is in the units of its rows."""
        return make(lengthscale)

    def inner_columns(self, D: int) -> int:
        """The number of D columns that the kernels inside this one see. Raises ValueError where there are too few."""
        return D


def with_variance(self: Any, factor: float) -> Any:
    """`AbstractKernel.times` of a kernel whose field `variance` is a factor."""
    return eqx.tree_at(lambda kernel: kernel.variance, self, factor * self.variance)


def of_parts_times(self: Any, factor: float) -> Any:
    """`AbstractKernel.times` of a kernel that is linear in its `kernels`."""
    return eqx.tree_at(lambda kernel: kernel.kernels, self, tuple(part.times(factor) for part in self.kernels))


def _fields(kernel: Any) -> dict[str, Any]:
    return {field.name: getattr(kernel, field.name) for field in dataclasses.fields(kernel)}


def _children(kernel: Any) -> list[AbstractKernel]:
    """The kernels that this one is made of."""
    values = sum((value if isinstance(value, tuple) else (value,) for value in _fields(kernel).values()), ())
    return [value for value in values if isinstance(value, AbstractKernel)]


def by_equality(kernel: AbstractKernel) -> bool:
    """Whether a part of it asks whether inputs are equal: then pseudo-points have to be rows, to the last digit."""
    return kernel.equality or any(map(by_equality, _children(kernel)))


def kinds(kernel: AbstractKernel) -> set[str]:
    """The names of the kernels that it is made of, without combinations and those that ask whether inputs are equal."""
    children = _children(kernel)
    own = set() if children or kernel.equality else {type(kernel).__name__}
    return own.union(*map(kinds, children))


def lengthscales(kernel: AbstractKernel) -> list[Any]:
    """The fields `lengthscale` of a kernel and of the kernels that it is made of."""
    own = [value for name, value in _fields(kernel).items() if name == "lengthscale"]
    return sum((lengthscales(child) for child in _children(kernel)), own)


def _operand(other: Any) -> AbstractKernel:
    """A kernel that was added or multiplied, or the number that was, as a kernel; anything else is refused."""
    if isinstance(other, AbstractKernel):  # a check of what a user passes, which may be of any type
        return other
    if isinstance(other, Real) and not isinstance(other, bool):
        return Constant(other)
    raise TypeError(f"a kernel is added to or multiplied by a kernel or a positive number, not {type(other).__name__}")


class Constant(AbstractKernel):
    """The same covariance for every pair: an unknown constant of that prior variance."""

    variance: Positive = positive(default=1.0)
    times = with_variance

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        return jnp.broadcast_to(jnp.asarray(self.variance, X.dtype), (X.shape[0], Z.shape[0]))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """variance · 1."""
        return self.variance * jnp.ones_like(X[:, 0])


class AbstractCombination(AbstractKernel):
    """The sum or product of kernels: `operation` of their values, shown with `symbol` between them."""

    operation: ClassVar[Callable[[Any, Any], Any]]
    symbol: ClassVar[str]
    kernels: eqx.AbstractVar[tuple[AbstractKernel, ...]]

    def expression(self, brief: bool) -> str:
        """a + b + … or a * b * …, with parentheses where Python needs them."""
        return self.symbol.join([_nested(k, brief, self.precedence + (i > 0)) for i, k in enumerate(self.kernels)])

    def ard(self, D: int) -> AbstractKernel:
        return type(self)(tuple(k.ard(D) for k in self.kernels))  # pyright: ignore[reportCallIssue]

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        return reduce(self.operation, [k(X, Z) for k in self.kernels])

    def prepare(self, Z: Float[Array, "M D"]) -> tuple:
        return tuple(k.prepare(Z) for k in self.kernels)

    def from_prepared(self, prepared: tuple, X: Float[Array, "N D"]) -> Float[Array, "M N"]:
        pairs = zip(self.kernels, prepared, strict=True)
        return reduce(self.operation, [k.from_prepared(part, X) for k, part in pairs])

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return reduce(self.operation, [k.diag(X) for k in self.kernels])


class Sum(AbstractCombination):
    """Σ k."""

    operation: ClassVar[Callable[[Any, Any], Any]] = add
    symbol: ClassVar[str] = " + "
    precedence: ClassVar[int] = 0
    kernels: tuple[AbstractKernel, ...]
    times = of_parts_times


class Product(AbstractCombination):
    """Π k."""

    operation: ClassVar[Callable[[Any, Any], Any]] = mul
    symbol: ClassVar[str] = " * "
    precedence: ClassVar[int] = 1
    kernels: tuple[AbstractKernel, ...]

    def times(self, factor: float) -> AbstractKernel:
        return Product((self.kernels[0].times(factor), *self.kernels[1:]))


def _nested(kernel: AbstractKernel, brief: bool, precedence: int) -> str:
    """A part of a larger expression, in parentheses where those are needed."""
    text = kernel.expression(brief)
    return f"({text})" if kernel.precedence < precedence else text


class AbstractOfRows(AbstractKernel):
    """A kernel of a function of the rows."""

    kernel: eqx.AbstractVar[AbstractKernel]

    @abstractmethod
    def seen(self, X: Float[Array, "N D"]) -> Float[Array, "N K"]:
        """What the kernel inside sees of the rows."""

    def wide(self) -> AbstractKernel:
        """The kernel inside."""
        return self.kernel

    def times(self, factor: float) -> AbstractKernel:
        return eqx.tree_at(lambda kernel: kernel.kernel, self, self.kernel.times(factor))

    def __call__(self, X: Float[Array, "N D"], Z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """[k(xᵢ, zⱼ)] of what it sees."""
        return self.wide()(self.seen(X), self.seen(Z))

    def prepare(self, Z: Float[Array, "M D"]) -> Any:
        return self.wide().prepare(self.seen(Z))

    def from_prepared(self, prepared: Any, X: Float[Array, "N D"]) -> Float[Array, "M N"]:
        return self.wide().from_prepared(prepared, self.seen(X))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return self.wide().diag(self.seen(X))


class On(AbstractOfRows):
    """`kernel` on the given input columns (active dimensions)."""

    kernel: AbstractKernel
    columns: tuple[int, ...] = eqx.field(static=True)

    def expression(self, brief: bool) -> str:
        return f"{_nested(self.kernel, brief, 2)}.on({', '.join(map(str, self.columns))})"

    def ard(self, D: int) -> AbstractKernel:
        """One lengthscale for each of its own columns, however many there are in all."""
        return On(self.kernel.ard(len(self.columns)), self.columns)

    def inner_columns(self, D: int) -> int:
        refuse_missing(self.columns, D)
        return len(self.columns)

    def seen(self, X: Float[Array, "N D"]) -> Float[Array, "N K"]:
        self.inner_columns(X.shape[1])
        return X[:, self.columns]


class InUnits(AbstractOfRows):
    """`kernel` of scale ∘ x + mean: standardised inputs in the units of the user's table.

    Pseudo-points then move in standard deviations of the columns, while the kernel's lengthscales are in the units of
    the table. `mean` and `scale`, [D], are not learned.
    """

    kernel: AbstractKernel
    mean: Float[Number, " D"] = real("learned")
    scale: Float[Number, " D"] = positive(learn="learned")
    learned: bool = eqx.field(static=True, default=False)

    def ard(self, D: int) -> AbstractKernel:
        return InUnits(self.kernel.ard(D), self.mean, self.scale)

    def beside(self, make: Callable[[Any], AbstractKernel], lengthscale: Any) -> AbstractKernel:
        """In the units of the table, with the same columns' means and scales."""
        return InUnits(make(lengthscale * self.scale), self.mean, self.scale)

    def seen(self, X: Float[Array, "N D"]) -> Float[Array, "N K"]:
        return X * self.scale + self.mean


def refuse_missing(columns: tuple[int, ...], D: int) -> None:
    """Raises ValueError for a column that is not there: JAX would take the last one in its place."""
    if any(not -D <= column < D for column in columns):
        raise ValueError(f"a kernel is on columns {columns}, but the inputs have {D}, which are 0 to {D - 1}")


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
    columns = kernel.inner_columns(D)
    return sum((_parts(child, columns) for child in _children(kernel)), [(kernel, D)])
