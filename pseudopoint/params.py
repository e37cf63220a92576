"""Model fields hold human values; optimisers see unconstrained numbers. This module converts between the two.

A model's fields hold what a person reads: a lengthscale is a length, a variance a variance. How a field is constrained
is metadata of the field (`positive()`, `bounded()` and the like; any other field is free), which only `Trainable`
reads. Optimisers see one array for each field, or one flat vector.
"""

import dataclasses
import reprlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# A field takes numbers, NumPy and JAX arrays; its converter makes arrays of them, which a type checker cannot follow.
if TYPE_CHECKING:
    Number: TypeAlias = Any
else:
    Number = Array | np.ndarray
T = TypeVar("T")


class _Identity(eqx.Module):
    """x = ξ."""

    def constrain(self, xi):
        return xi

    def unconstrain(self, x):
        return x


class _Exp(eqx.Module):
    """x = lower + exp(ξ), at most about `most`. A step in ξ is a relative change of x, so that scales of 1e-6 and 1e6
    move alike."""

    lower: float = eqx.field(static=True)
    most: float = eqx.field(static=True, default=np.inf)

    def constrain(self, xi):
        least, most = _log_limits(xi, self.lower)
        return self.lower + jnp.exp(jnp.clip(xi, least, min(most, float(np.log(self.most)))))

    def unconstrain(self, x):
        # A value at or below the lower end starts a little above it, here and in the other bijectors.
        return jnp.log(jnp.maximum(x - self.lower, 1e-3 * self.lower + jnp.exp(_log_limits(x, 0.0)[0])))


def _log_limits(x: Any, lower: float) -> tuple[float, float]:
    """Beyond e to these, squares and their derivatives overflow or vanish, which would turn gradients into NaN; and a
    sum with `lower` would be `lower`. In float64 no unit reaches them: a lengthscale of ten years is 3e17 nanoseconds,
    an elementary charge 2e-19 coulombs."""
    limit = 40.0 if jnp.result_type(x) == jnp.float32 else 150.0
    return -40.0 if lower > 0 else -limit, limit


class _Softplus(eqx.Module):
    """x = log(1 + exp(ξ)) and ξ = x + log(1 − exp(−x)). Steps are relative for small x and absolute for large x."""

    def constrain(self, xi):
        return jax.nn.softplus(jnp.maximum(xi, -40))

    def unconstrain(self, x):
        x = jnp.maximum(x, 1e-12)
        return x + jnp.log(-jnp.expm1(-x))


class _Clip(eqx.Module):
    """x = max(ξ, lower). A step of the optimiser below `lower` ends there."""

    lower: float = eqx.field(static=True)

    def constrain(self, xi):
        return jnp.maximum(xi, self.lower)

    def unconstrain(self, x):
        return x


class _Sigmoid(eqx.Module):
    """x = lower + (upper − lower) σ(ξ)."""

    lower: float = eqx.field(static=True)
    upper: float = eqx.field(static=True)

    def constrain(self, xi):
        return jnp.clip(self.lower + (self.upper - self.lower) * jax.nn.sigmoid(xi), self.lower, self.upper)

    def unconstrain(self, x):
        share = jnp.clip((x - self.lower) / (self.upper - self.lower), 1e-6, 1 - 1e-6)
        return jnp.log(share) - jnp.log1p(-share)


_IDENTITY = _Identity()


def _array(name: str, value: Any) -> Any:
    # Python numbers stay float64 NumPy arrays: a JAX array made outside a float64 scope would lose digits for good.
    if isinstance(value, np.ndarray) and value.dtype.kind in "biu":
        return value.astype(float)
    if not np.isscalar(value) and not isinstance(value, list | tuple):
        return value
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}={reprlib.repr(value)} must hold real numbers, of at most 1.8e308") from None


def _positive_array(name: str, value: Any) -> Any:
    value = _array(name, value)
    if known(value) and not (np.isfinite(value).all() and (np.asarray(value) > 0).all()):
        raise ValueError(f"{name}={written(value)} must be positive and finite")
    return value


def known(value: Any) -> bool:
    """Whether it holds numbers now: what JAX is tracing does not, and is not checked."""
    return isinstance(value, np.ndarray | jax.Array) and not isinstance(value, jax.core.Tracer)


def _field(convert: Callable[[str, Any], Any], bijector: Any, learn: str | None, keywords: dict[str, Any]) -> Any:
    """A field whose values pass through `convert(name of the field, value)`."""
    metadata = {"bijector": bijector, "learn": learn}
    field: Any = eqx.field(converter=lambda value: convert(field.name, value), metadata=metadata, **keywords)
    return field


def positive(lower: float = 0.0, learn: str | None = None, most: float = np.inf, **keywords) -> Any:
    """A field of positive numbers, ValueError otherwise; the optimiser keeps them above `lower` and up to `most`.

    `learn` names a static boolean field that says whether the optimiser moves this one; without it, it does.
    """
    return _field(_positive_array, _Exp(lower, most), learn, keywords)


def softplus(**keywords) -> Any:
    """A field of positive numbers, ValueError otherwise, which the optimiser moves through softplus."""
    return _field(_positive_array, _Softplus(), None, keywords)


def clipped(lower: float, **keywords) -> Any:
    """A field of positive numbers, ValueError otherwise, which the optimiser moves as they are, down to `lower` > 0."""
    return _field(_positive_array, _Clip(lower), None, keywords)


def bounded(lower: float, upper: float, learn: str | None = None, **keywords) -> Any:
    """A field of numbers from `lower` to `upper`, ValueError otherwise. `learn` as for `positive`."""

    def inside(name, value):
        value = _array(name, value)
        if known(value) and not ((value >= lower) & (value <= upper)).all():
            raise ValueError(f"{name}={written(value)} must be between {lower} and {upper}")
        return value

    return _field(inside, _Sigmoid(lower, upper), learn, keywords)


def real(learn: str | None = None, **keywords) -> Any:
    """A field of any numbers. `learn` as for `positive`."""
    return _field(_array, _IDENTITY, learn, keywords)


SHOWN = 8  # numbers of an array that a brief expression shows


class Readable(eqx.Module):
    """A module that is shown as the expression that makes it: `RBF(lengthscale=[0.31, 2.4], variance=1.7)`.

    `repr` has all digits and numbers; `str`, and so `print`, has four digits and shortens long arrays.
    """

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}

    def expression(self, brief: bool) -> str:
        """`Name(argument=value, …)`."""
        arguments = ", ".join(f"{name}={written(value, brief)}" for name, value in self.arguments().items())
        return f"{type(self).__name__}({arguments})"

    def __repr__(self) -> str:
        return self.expression(False)

    def __str__(self) -> str:
        return self.expression(True)


def written(value: Any, brief: bool = True) -> str:
    """A value as Python text: arrays as lists of numbers. `brief`: of four digits, and at most eight of them."""
    if not known(value):
        return repr(value) if isinstance(value, str) or not brief else str(value)
    numbers = np.asarray(value)
    if numbers.ndim == 0:
        return str(float(f"{numbers:.4g}") if brief else numbers[()])
    items = [written(row, brief) for row in map(np.asarray, numbers)]
    if brief and len(items) > SHOWN:
        items[SHOWN - 2 : -1] = ["…"]
    return f"[{', '.join(items)}]"


def cast(tree: T, dtype: Any) -> T:
    """The tree with all floating arrays as JAX arrays of `dtype`; float64 needs the caller's float64 scope."""

    def converted(x):
        if not (eqx.is_array_like(x) and jnp.issubdtype(jnp.result_type(x), jnp.floating)):
            return x
        if known(x) and x.dtype != dtype:  # by NumPy: JAX would compile a program for every shape
            with np.errstate(over="ignore"):
                x = np.asarray(x).astype(dtype)
        return jnp.asarray(x, dtype)

    return jax.tree.map(converted, tree)


def _bijectors(node: Any, inherited: Any = _IDENTITY) -> list[Any]:
    """One bijector for every leaf of the tree, in the order of `jax.tree.leaves`; None where it is not learned."""
    if isinstance(node, eqx.Module):
        fields = [f for f in dataclasses.fields(node) if not f.metadata.get("static", False)]
        learned = lambda learn: learn is None or getattr(node, learn)
        own = lambda field: field.get("bijector", _IDENTITY) if learned(field.get("learn")) else None
        return sum((_bijectors(getattr(node, f.name), own(f.metadata)) for f in fields), [])
    module = lambda x: isinstance(x, eqx.Module)
    children = jax.tree.leaves(node, is_leaf=module)
    return sum((_bijectors(child) if module(child) else [inherited] for child in children), [])


Parts = tuple[Array, ...]


class Trainable(eqx.Module, Generic[T]):
    """The trainable numbers of a model, unconstrained, as one array for each field; `rebuild` makes the model of them.

    `vector` holds the same numbers end to end. Compiled steps should use `parts`: XLA on CPUs may fuse the computation
    of a gradient into the concatenation of its vector, and then computes it number by number.
    """

    parts: Parts
    model: T
    leaf_indices: tuple[int, ...] = eqx.field(static=True)
    bijectors: tuple = eqx.field(static=True)

    @property
    def vector(self) -> Float[Array, " P"]:
        """All numbers, end to end."""
        return jnp.concatenate([jnp.ravel(part) for part in self.parts]) if self.parts else jnp.zeros(0)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(int(np.size(part)) for part in self.parts)

    @property
    def dtype(self) -> Any:
        """That of the numbers."""
        return jnp.result_type(*self.parts) if self.parts else jnp.zeros(0).dtype

    def split(self, vector: Float[Array, " P"]) -> Parts:
        """A vector such as `vector` as one array for each field."""
        shapes = [np.shape(part) for part in self.parts]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        # `jnp.split` and not slices: its derivative is one concatenation.
        return tuple(x.reshape(shape) for x, shape in zip(jnp.split(vector, ends), shapes, strict=False))

    def rebuild(self, numbers: Float[Array, " P"] | Parts) -> T:
        """The model whose trainable numbers are these, given as a vector or as one array for each field."""
        leaves, structure = jax.tree.flatten(self.model)
        parts = numbers if isinstance(numbers, tuple) else self.split(numbers)
        for i, bijector, part in zip(self.leaf_indices, self.bijectors, parts, strict=True):
            leaves[i] = bijector.constrain(part)
        return jax.tree.unflatten(structure, leaves)


def trainable(model: T, *frozen: Callable[[T], Any]) -> Trainable[T]:
    """All floating numbers of `model` except those that `frozen` selects, e.g. `lambda m: m.posterior.Z`.

    The model's leaves must be JAX arrays of one dtype (see `cast`).
    """
    leaves, structure = jax.tree.flatten(model)
    numbered, bijectors = jax.tree.unflatten(structure, range(len(leaves))), _bijectors(model)
    held = {i for select in frozen for i in jax.tree.leaves(select(numbered))}
    learned = lambda i: eqx.is_inexact_array(leaves[i]) and i not in held and bijectors[i] is not None
    indices = tuple(i for i in range(len(leaves)) if learned(i))
    chosen = tuple(bijectors[i] for i in indices)
    return Trainable(_unconstrained(chosen, [leaves[i] for i in indices]), model, indices, chosen)


@partial(jax.jit, static_argnums=0)
def _unconstrained(bijectors, numbers) -> Parts:
    """In one compiled program; without `jit`, each operation would be a program."""
    return tuple(b.unconstrain(x) for b, x in zip(bijectors, numbers, strict=True))
