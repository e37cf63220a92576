"""Where the kernel of an estimator starts, and the units of its numbers."""

from ..data import Standardiser
from ..kernels import AbstractKernel, InUnits, by_equality, check_columns
from ..names import Settings
from ..starts.hyperparameters import STARTS, named_kernel
from . import notes


def in_units_of_inputs(settings: Settings) -> bool:
    """Whether the kernel's numbers are in the units of X: those of an object, unless inputs are to be scaled."""
    given = isinstance(settings.kernel, AbstractKernel)  # a check of what a user passes
    return given and (settings.scale_inputs == "auto" or not settings.scale_inputs)


def unrounded(scaling: Standardiser, settings: Settings) -> Standardiser:
    """The scaling, or one that changes no digit under an object that asks whether inputs are equal."""
    exact = in_units_of_inputs(settings) and by_equality(settings.kernel)  # pyright: ignore[reportArgumentType]
    return scaling.without_rounding() if exact else scaling


def start_kernel(
    settings: Settings, X, y, variance: float | None, units: Standardiser | None
) -> tuple[AbstractKernel, list[str]]:
    """The kernel at its start, as a function of scaled inputs, and what to say about it; `variance` is that of f for a
    target that is not scaled, `units` are those of an object's numbers, None where they are standard deviations."""
    kernel = settings.kernel
    if isinstance(kernel, AbstractKernel):
        check_columns(kernel, X.shape[1])
        at = kernel if units is None else InUnits(kernel, units.mean, units.scale)
        return at, notes.start_of_kernel(kernel, at, X)
    kernel = "matern52" if kernel == "auto" else kernel
    lengthscale, of_scaled = STARTS[settings.initial](X, y)
    return named_kernel(kernel, lengthscale, of_scaled if variance is None else variance, X.shape[1]), []
