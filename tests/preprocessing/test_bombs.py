"""Small files that would become large or long: refused by their headers, or stopped at the limit."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import wave
import zlib
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from omni_python.preprocessing.audio import decode_audio
from omni_python.preprocessing.image import decode_image
from omni_python.preprocessing.video import decode_video
from omni_python.proto.errors import InvalidArgument

ZEROS = zlib.compress(bytes(100 << 20), 9)
"""100 MiB in 100 KB."""


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int, height: int, *chunks: bytes, pixels: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def wav(rate: int, channels: int, data: bytes, declared: int = 0xFFFFFFFF) -> bytes:
    size = channels * 2
    form = struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * size & 0xFFFFFFFF, size & 0xFFFF, 16)
    return b"RIFF" + struct.pack("<I", declared) + b"WAVEfmt " + form + b"data" + struct.pack("<I", declared) + data


def box(name: bytes, *content: bytes) -> bytes:
    body = b"".join(content)
    return struct.pack(">I", 8 + len(body)) + name + body


FTYP = box(b"ftyp", b"qt  \0\0\0\0qt  ")
PACKED = box(b"cmov", box(b"dcom", b"zlib"), box(b"cmvd", struct.pack(">I", 1 << 30), ZEROS))


def canvas(width: int, height: int) -> bytes:
    """A WebP file of one pixel on a canvas of that size."""
    out = io.BytesIO()
    Image.new("RGB", (1, 1)).save(out, "WEBP", lossless=True)
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + sizes + out.getvalue()[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (png(100_000, 100_000), "too large|more than 64000000"),
        (png(2**31 - 1, 2**31 - 1), "accepted formats|too large"),
        (png(9000, 9000, pixels=ZEROS), "9000 x 9000 pixels has more than 64000000"),
        (png(4, 4, chunk(b"zTXt", b"k\0\0" + ZEROS)), "unreadable image"),
        (png(4, 4, chunk(b"iTXt", b"k\0\1\0\0\0" + ZEROS)), "unreadable image"),
        (png(4, 4, chunk(b"iCCP", b"k\0\0" + ZEROS)), "unreadable image"),
        (canvas(16383, 16383), "more than 64000000|too large|unreadable image"),
        (b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b",", "too large|accepted formats"),
        (b"BM" + struct.pack("<IIIIiiHHIIIIII", 0, 0, 54, 40, 60000, 60000, 1, 24, 0, 0, 0, 0, 0, 0), "too large"),
        (b"PK\3\4" + ZEROS, "accepted formats"),
    ],
    ids=["png", "png of 2^62", "png with data", "ztxt", "itxt", "iccp", "webp", "gif", "bmp", "zip"],
)
def test_images(data: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        decode_image(data)


def test_a_jpeg_of_endless_scans_ends_with_the_time() -> None:
    out = io.BytesIO()
    Image.new("RGB", (3000, 3000)).save(out, "JPEG", progressive=True, quality=1)
    data = out.getvalue()
    scan = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(InvalidArgument, match="decoding the file took longer than 0.5 s, the most that is accepted"):
        decode_image(data[:-2] + scan * (1_000_000 // len(scan)) + b"\xff\xd9", decode_seconds=0.5)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (wav(1, 1, bytes(100_000)), "audio sample rate 1 Hz is not in 1000..768000"),
        (wav(4_000_000_000, 1, bytes(100_000)), "sample rate|unreadable audio"),
        (wav(1, 64, bytes(100_000)), "audio sample rate|channels"),
        (wav(16000, 64, bytes(100_000)), "64 channels; at most 16 are accepted"),
        (wav(16000, 65535, bytes(1_000_000)), "channels|unreadable audio|no sound"),
        (wav(8000, 1, bytes(2 * 8000 * 21)), "longer than 20 s"),
        (FTYP + box(b"moov", PACKED), "audio file with a compressed header, which is not unpacked"),
    ],
    ids=["1 Hz", "4 GHz", "1 Hz 64 channels", "64 channels", "65535 channels", "longer than it may be", "moov"],
)
def test_sounds(data: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        decode_audio(data, max_seconds=20)


def test_what_a_wav_declares_counts_for_nothing() -> None:
    assert decode_audio(wav(16000, 1, bytes(32000)), max_seconds=20).size == 16000
    for declared in (0, 1, 0x7FFFFFFF):
        try:
            assert decode_audio(wav(16000, 1, bytes(32000), declared), max_seconds=20).size <= 16000
        except InvalidArgument as error:
            assert "accepted formats" in str(error)


def test_hours_of_silence_stop_at_the_limit() -> None:
    out = io.BytesIO()
    with av.open(out, "w", format="flac") as file:
        stream = file.add_stream("flac", rate=8000, layout="mono")
        for second in range(0, 3600, 60):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000 * 60), np.int16), format="s16", layout="mono")
            frame.sample_rate, frame.pts = 8000, second * 8000
            for piece in av.AudioResampler("s16", "mono", 8000, frame_size=4608).resample(frame):
                file.mux(stream.encode(piece))
    assert len(out.getvalue()) < 1_000_000
    with pytest.raises(InvalidArgument, match="longer than 30 s"):
        decode_audio(out.getvalue(), max_seconds=30)
    with pytest.raises(InvalidArgument, match="took longer than 0 s"):
        decode_audio(out.getvalue(), decode_seconds=0)


def film(width: int, height: int, frames: int, container: str = "mp4") -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream("libx264", rate=25, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            frame = av.VideoFrame(width, height, "yuv420p")
            for plane in frame.planes:
                plane.update(bytes(plane.buffer_size))
            frame.pts = number
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return out.getvalue()


def test_films() -> None:
    with pytest.raises(InvalidArgument, match="video of 6000 x 4000 pixels: at most 16000000 a frame"):
        decode_video(film(6000, 4000, 1))
    with pytest.raises(InvalidArgument, match="video of 40.0 s: at most 30 s"):
        decode_video(film(64, 64, 1000), max_seconds=30)
    with pytest.raises(InvalidArgument, match="took longer than 0 s"):
        decode_video(film(64, 64, 10), decode_seconds=0)
    for data in (FTYP + box(b"moov", PACKED), FTYP + box(b"moov", box(b"trak", PACKED))):
        with pytest.raises(InvalidArgument, match="compressed header"):
            decode_video(data)
    nested = b""
    for _ in range(5000):
        nested = box(b"moov", nested)
    with pytest.raises(InvalidArgument, match="accepted formats"):
        decode_video(FTYP + nested)


def test_a_size_that_the_header_hides_is_found_out() -> None:
    data = bytearray(film(6000, 4000, 1))
    at = data.index(b"avc1", data.index(b"stsd"))
    data[at + 28 : at + 32] = struct.pack(">HH", 64, 64)
    with pytest.raises(InvalidArgument, match="6000 x 4000"):
        decode_video(bytes(data))


def test_a_film_whose_size_changes() -> None:
    with pytest.raises(InvalidArgument, match="size changes from 64 x 64 to 128 x 128; only videos of one size"):
        decode_video(film(64, 64, 30, "mpegts") + film(128, 128, 30, "mpegts"))


def test_tags_in_other_encodings_do_no_harm() -> None:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(bytes(3200))
    artist = b"IART" + struct.pack("<I", 6) + b"Beyonc\xe9\0"[-6:]
    tags = b"LIST" + struct.pack("<I", 4 + len(artist)) + b"INFO" + artist
    data = bytearray(out.getvalue() + tags)
    data[4:8] = struct.pack("<I", len(data) - 8)
    assert decode_audio(bytes(data)).size == 1600


@pytest.mark.parametrize("name", ["ztxt", "moov"])
def test_memory_while_refusing(tmp_path: Path, name: str) -> None:
    """In a process whose address space has 600 MiB left for files that unpack to 1 GiB."""
    data = png(4, 4, chunk(b"zTXt", b"k\0\0" + ZEROS)) if name == "ztxt" else FTYP + box(b"moov", PACKED)
    path = tmp_path / "bomb"
    path.write_bytes(data)
    code = (
        "import resource, sys, pathlib\n"
        "from omni_python.preprocessing.image import decode_image\n"
        "from omni_python.preprocessing.video import decode_video\n"
        "from omni_python.proto.errors import InvalidArgument\n"
        "used = int(pathlib.Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (600 << 20),) * 2)\n"
        "try:\n"
        "    (decode_image if sys.argv[2] == 'ztxt' else decode_video)(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "except InvalidArgument as error:\n"
        "    status = pathlib.Path('/proc/self/status').read_text()\n"  # ru_maxrss would start with the parent's
        "    print(error, status.partition('VmHWM:')[2].split()[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path, name], capture_output=True, text=True, timeout=60)
    message, _, peak = done.stdout.strip().rpartition(" ")
    assert done.returncode == 0 and message, done.stderr
    assert int(peak) < 400_000, "KB; imports take a quarter of it"
