"""Undoing the compressions that kombu knows, to a limit: a bomb stays small.

zstd and brotli are optional, as they are in kombu: where their library is missing, that is said instead.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import zlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

MAX_WINDOW_BYTES = 128 * 1024 * 1024
"""A sender may ask for so much memory to look back in: what the strongest usual settings of xz and zstd need."""


class CompressionError(ValueError):
    """Why a body cannot be decompressed, as a clause."""


def decompress(body: bytes, compression: str, limit: int) -> bytes:
    """Decompress to ``limit`` bytes at most; ``compression`` is kombu's name. Raises CompressionError."""
    try:
        undo = DECOMPRESSIONS[compression]
    except KeyError:
        raise CompressionError(f"{compression!r} is not known") from None
    try:
        data, whole = undo(body, limit + 1)
    except CompressionError:
        raise
    except Exception as error:  # zstd and brotli have errors of their own, which may not be importable
        raise CompressionError(str(error)) from error
    if len(data) > limit:
        raise CompressionError(f"it becomes more than {limit} bytes")
    if not whole:
        raise CompressionError("it ends too early")
    return data


def _steps(decompressor: Any, body: bytes, size: int) -> tuple[bytes, bool]:
    return decompressor.decompress(body, size), decompressor.eof


def _zlib(body: bytes, size: int) -> tuple[bytes, bool]:
    return _steps(zlib.decompressobj(), body, size)


def _bz2(body: bytes, size: int) -> tuple[bytes, bool]:
    return _steps(bz2.BZ2Decompressor(), body, size)


def _lzma(body: bytes, size: int) -> tuple[bytes, bool]:
    return _steps(lzma.LZMADecompressor(memlimit=MAX_WINDOW_BYTES), body, size)


def _zstd(body: bytes, size: int) -> tuple[bytes, bool]:
    zstd = _library("compression.zstd", "backports.zstd")
    window = {zstd.DecompressionParameter.window_log_max: MAX_WINDOW_BYTES.bit_length() - 1}
    return _steps(zstd.ZstdDecompressor(options=window), body, size)


def _brotli(body: bytes, size: int) -> tuple[bytes, bool]:
    decompressor = _library("brotli", "brotlicffi").Decompressor()
    try:
        data = decompressor.process(body, output_buffer_limit=size)
    except TypeError as error:
        raise CompressionError("brotli before 1.2 cannot stop at a limit") from error
    while len(data) < size and not decompressor.is_finished():
        more = decompressor.process(b"", output_buffer_limit=size - len(data))
        if not more:
            break
        data += more
    return data, decompressor.is_finished()


def _library(*names: str) -> ModuleType:
    """The first of these modules that is there. Raises CompressionError."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise CompressionError(f"{names[-1]} is not installed here")


DECOMPRESSIONS: Mapping[str, Callable[[bytes, int], tuple[bytes, bool]]] = {
    "application/x-gzip": _zlib,  # kombu's name for plain zlib
    "application/x-bz2": _bz2,
    "application/x-lzma": _lzma,
    "application/zstd": _zstd,
    "application/x-brotli": _brotli,
}
"""By kombu's name: what was decompressed, at most so many bytes, and whether that was all."""
