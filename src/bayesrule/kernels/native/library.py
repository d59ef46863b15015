"""The C files beside this one as a library: compiled once for a machine, kept in the user's cache, loaded by ctypes.

Where there is no compiler, plain operations of torch do the same, with other normals for a seed and in more time.
``BAYESRULE_NATIVE=0`` asks for them.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SOURCES = "draws.c", "kls.c", "local_noise.c", "normals.c"
HEADERS = "ktied.h", "normals.h", "vectors.h"
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
OFF = ("0", "false", "no", "off")
SECONDS = 120
"""To compile takes half a second."""
ENTRIES = 1 << 18
"""Of a matrix, up to which one thread is as fast as several are."""

NUMBER, SEED, POINTER, REAL = ctypes.c_long, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_double
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "divergences": (ctypes.c_int, (NUMBER, *[POINTER] * 6)),
    "diagonal_divergence": (REAL, (NUMBER, *[POINTER] * 2, *[REAL] * 2, *[POINTER] * 2)),
    "draws": (None, (NUMBER, POINTER, SEED, *[POINTER] * 4)),
    "draws_backward": (ctypes.c_int, (NUMBER, POINTER, SEED, *[POINTER] * 5, REAL, POINTER)),
    "draws_kept": (NUMBER, (NUMBER, POINTER)),
    "ktied_divergence": (ctypes.c_int, (*[NUMBER] * 3, *[POINTER] * 3, REAL, *[POINTER] * 3)),
    "ktied_draw": (None, (*[NUMBER] * 3, *[POINTER] * 4, SEED, *[POINTER] * 2)),
    "ktied_draw_backward": (ctypes.c_int, (*[NUMBER] * 3, *[POINTER] * 3, SEED, *[POINTER] * 2)),
    "ktied_factors": (NUMBER, (NUMBER,) * 3),
    "ktied_noise": (ctypes.c_int, (*[NUMBER] * 4, *[POINTER] * 4, SEED, *[POINTER] * 5)),
    "ktied_noise_backward": (ctypes.c_int, (*[NUMBER] * 4, *[POINTER] * 2, SEED, *[POINTER] * 7)),
    "ktied_noise_kept": (NUMBER, (NUMBER,) * 4),
    "standard_normals": (None, (SEED, NUMBER, POINTER)),
}
"""What each returns and takes."""


def serves(entries: int, *tensors: Tensor) -> bool:
    """Whether the library takes these ordinary tensors of a CPU, for so many entries."""
    for tensor in tensors:
        if tensor.dtype != torch.float32 or not tensor.is_cpu or not tensor.is_contiguous():
            return False
    return (entries <= ENTRIES or torch.get_num_threads() == 1) and is_there()


def is_there() -> bool:
    """Whether there is a library, and nobody watches or replaces torch's operators: of its work they would not know."""
    watched = torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None
    return not watched and library() is not None


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled library, None where there is none to be had."""
    if sys.platform != "linux" or os.environ.get("BAYESRULE_NATIVE", "").lower() in OFF:
        return None
    try:
        command, *options = shlex.split(os.environ.get("CC") or "cc")
        compiler = shutil.which(command)
        return None if compiler is None else _declared(_compiled([compiler, *options]))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


@lru_cache(maxsize=len(FUNCTIONS))
def function(name: str) -> Any:
    """One of its functions, where `serves` has said that there is a library."""
    return getattr(library(), name)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _compiled(compiler: list[str]) -> ctypes.CDLL:
    folder = Path(__file__).parent
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=True, timeout=SECONDS).stdout
    sources = b"".join((folder / name).read_bytes() for name in (*SOURCES, *HEADERS))
    key = _digest(b"\0".join((sources, " ".join((*compiler, *FLAGS)).encode(), version, _processor())))
    try:
        kept = _cache()
        for path in kept.glob(f"{key}-*.so"):
            if path.stem == f"{key}-{_digest(path.read_bytes())}":  # a file that was cut off would end the program
                return ctypes.CDLL(str(path))
            path.unlink(missing_ok=True)
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept) as made:
            path = _compile(compiler, folder, Path(made))
            whole = kept / f"{key}-{_digest(path.read_bytes())}.so"
            os.replace(path, whole)  # at once, whoever else compiles it too
        return ctypes.CDLL(str(whole))
    except (OSError, RuntimeError):  # no home, a cache that cannot be written, or programs there not be run
        with tempfile.TemporaryDirectory() as made:
            return ctypes.CDLL(str(_compile(compiler, folder, Path(made))))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayesrule" / "native"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]


def _compile(compiler: list[str], folder: Path, made: Path) -> Path:
    path = made / "native.so"
    command = [*compiler, *FLAGS, "-o", str(path), *(str(folder / name) for name in SOURCES), "-lm"]
    subprocess.run(command, capture_output=True, check=True, timeout=SECONDS)
    return path


def _processor() -> bytes:
    """What `-march=native` depends on: a cache may be shared by unlike machines."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return b"\n".join(sorted({line for line in lines if line.startswith((b"flags", b"Features", b"model name"))}))
