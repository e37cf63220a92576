"""BLAS and LAPACK on NumPy arrays, in place, for threads that run at the same time.

SciPy's Python functions hold Python's global lock while they compute: two threads take as long as one. The same
functions are also offered to compiled code, as pointers (`scipy.linalg.cython_blas`), which ctypes calls without the
lock. Matrices are stored by columns (`order="F"`); of a triangular or symmetric one the lower triangle alone is read
and written.
"""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.linalg import cython_blas, cython_lapack  # pyright: ignore[reportAttributeAccessIssue]

Matrix = Float[np.ndarray, "_ _"]


@lru_cache(maxsize=64)
def _pointer(name: str, arguments: int) -> Any:
    """The function of that name, whose arguments are all pointers, as in Fortran."""
    offered: Any = cython_lapack.__pyx_capi__ | cython_blas.__pyx_capi__
    capsule, api = offered[name], ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(address)


class HostBlas:
    """The functions for matrices of one dtype, float64 or float32."""

    def __init__(self, dtype: np.dtype):
        self.prefix, self.real = ("d", ctypes.c_double) if dtype == np.float64 else ("s", ctypes.c_float)

    def _call(self, name: str, *arguments: Any) -> None:
        """Letters, whole numbers, real numbers and arrays by reference."""
        types = {str: lambda x: ctypes.c_char(x.encode()), int: ctypes.c_int, float: self.real}
        held = [x if isinstance(x, np.ndarray | ctypes.c_int) else types[type(x)](x) for x in arguments]
        places = [x.ctypes.data if isinstance(x, np.ndarray) else ctypes.addressof(x) for x in held]
        _pointer(self.prefix + name, len(places))(*places)

    def gemm(self, alpha: float, A: Matrix, B: Matrix, C: Matrix, trans_a: bool = False, trans_b: bool = False) -> None:
        """C ← C + α A B, of A or B transposed where that is said."""
        (m, n), k = C.shape, A.shape[0] if trans_a else A.shape[1]
        letters = "NT"[trans_a], "NT"[trans_b]
        self._call("gemm", *letters, m, n, k, alpha, A, len(A), B, len(B), 1.0, C, len(C))

    def syrk(self, alpha: float, A: Matrix, C: Matrix) -> None:
        """C ← C + α A Aᵀ."""
        self._call("syrk", "L", "N", len(C), A.shape[1], alpha, A, len(A), 1.0, C, len(C))

    def divide(self, B: Matrix, L: Matrix, transposed: bool = False) -> None:
        """B ← B L⁻¹, or B L⁻ᵀ."""
        self._call("trsm", "R", "L", "NT"[transposed], "N", *B.shape, 1.0, L, len(L), B, len(B))

    def multiply(self, B: Matrix, L: Matrix) -> None:
        """B ← B L."""
        self._call("trmm", "R", "L", "N", "N", *B.shape, 1.0, L, len(L), B, len(B))

    def factorise(self, K: Matrix) -> bool:
        """K → L with LLᵀ = K; whether K is positive definite."""
        return self._of_one("potrf", "L", K) == 0

    def invert(self, L: Matrix) -> None:
        """L → L⁻¹."""
        self._of_one("trtri", "LN", L)

    def gram(self, L: Matrix) -> None:
        """L → LᵀL."""
        self._of_one("lauum", "L", L)

    def _of_one(self, name: str, letters: str, K: Matrix) -> int:
        """`info` of a function of one matrix."""
        info = ctypes.c_int(0)
        self._call(name, *letters, len(K), K, len(K), info)
        return info.value
