"""Bodies that were compressed: undone to a limit, by libraries that may be missing."""

from __future__ import annotations

import base64
import bz2
import lzma
import subprocess
import sys
import zlib

import brotli
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st
from kombu import compression

from broker_topology.compression import DECOMPRESSIONS, CompressionError, decompress
from tasks import hostile_messages

COMPRESS = {
    "application/x-gzip": zlib.compress,
    "application/x-bz2": bz2.compress,
    "application/x-lzma": lzma.compress,
    "application/zstd": zstd.compress,
    "application/x-brotli": brotli.compress,
}


def test_every_compression_of_kombu_is_known() -> None:
    """What kombu can be told to send with its optional libraries installed, we read (D1)."""
    assert set(compression.encoders()) == set(DECOMPRESSIONS) == set(COMPRESS)


@pytest.mark.parametrize("kind", DECOMPRESSIONS)
def test_a_body_is_read_up_to_the_limit_and_not_beyond(kind: str) -> None:
    """To the byte; what is cut short or something else says so (D1, D2)."""
    body = bytes(range(256)) * 400
    packed, _ = compression.compress(body, kind)
    assert decompress(packed, kind, len(body)) == body
    with pytest.raises(CompressionError, match=f"more than {len(body) - 1} bytes"):
        decompress(packed, kind, len(body) - 1)
    with pytest.raises(CompressionError):
        decompress(packed[:-5], kind, len(body))
    with pytest.raises(CompressionError):
        decompress(b"\xff no such thing", kind, len(body))


@given(kind=st.sampled_from(sorted(DECOMPRESSIONS)), body=st.binary(), data=st.data())
def test_nothing_but_a_compression_error_is_raised(kind: str, body: bytes, data: st.DataObject) -> None:
    """Whatever the bytes are: nonsense, or a good body with one byte changed (D2)."""
    packed = bytearray(COMPRESS[kind](body))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    for hostile in (body, bytes(packed)):
        try:
            decompress(hostile, kind, 1000)
        except CompressionError:
            continue


@pytest.mark.parametrize(
    ("module", "kind"), [("brotli", "application/x-brotli"), ("backports.zstd", "application/zstd")]
)
def test_a_library_that_is_missing_is_named(module: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The body stays undecoded, with the reason (D1, D2)."""
    packed = COMPRESS[kind](b"[[], {}, {}]")
    for name in (module, "brotlicffi", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CompressionError, match="is not installed here"):
        decompress(packed, kind, 1000)


def test_a_sender_cannot_ask_for_a_huge_window() -> None:
    """A frame of a few bytes that wants 1 GB to look back in is refused before that is taken (D2)."""
    options: dict[int, int] = {
        zstd.CompressionParameter.window_log: 30,
        zstd.CompressionParameter.content_size_flag: 0,
    }
    compressor = zstd.ZstdCompressor(options=options)
    frame = compressor.compress(b"[[], {}, {}]") + compressor.flush()
    with pytest.raises(CompressionError, match="too much memory"):
        decompress(frame, "application/zstd", 1000)
    strong = lzma.compress(b"[]", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}])
    with pytest.raises(CompressionError, match=r"[Mm]emory"):
        decompress(strong, "application/x-lzma", 1000)


def test_bombs_stay_small() -> None:
    """A hundred megabytes of blanks take the limit and little more, whatever they were packed with (D2)."""
    script = (
        "import resource, sys, base64; from broker_topology.compression import *\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for line in sys.stdin:\n"
        "    kind, bomb = line.split()\n"
        "    try: decompress(base64.b64decode(bomb), kind, 1_000_000)\n"
        "    except CompressionError as error: assert 'more than' in str(error), error\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    bombs = "".join(
        f"{kind} {base64.b64encode(compression.compress(b' ' * 100_000_000, kind)[0]).decode()}\n"
        for kind in DECOMPRESSIONS
        if kind != "application/x-brotli"
    )
    bombs += f"application/x-brotli {base64.b64encode(brotli.compress(b' ' * 100_000_000, quality=1)).decode()}\n"
    done = subprocess.run([sys.executable, "-c", script], input=bombs, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60_000  # kilobytes; the strongest window of bzip2, zstd and brotli is in it


def test_a_worker_reads_them_to_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each compression that kombu knows is undone by ours, in the worker as in the drain (D2)."""
    monkeypatch.setattr(compression, "_decoders", dict(compression._decoders))
    monkeypatch.setattr(compression, "_encoders", dict(compression._encoders))
    monkeypatch.setattr(hostile_messages, "MAX_DECOMPRESSED_BYTES", 1000)
    hostile_messages.read_hostile_messages()
    for kind, compress in COMPRESS.items():
        assert compression.decompress(compress(b"[[], {}, {}]"), kind) == b"[[], {}, {}]"
        with pytest.raises(CompressionError, match="more than 1000 bytes"):
            compression.decompress(compress(b" " * 10_000), kind)
