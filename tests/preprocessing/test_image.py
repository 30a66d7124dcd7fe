"""Images: colours and orientation as meant, and nothing but images."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from omni_python.preprocessing.image import decode_image
from omni_python.proto.errors import InvalidArgument
from tests.oracle.cases import MEDIA


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng().integers(0, 256, (5, 9, 3), np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_formats(kind: str, pixels: np.ndarray) -> None:
    np.testing.assert_array_equal(decode_image(encode(Image.fromarray(pixels), kind)), pixels)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF"])
def test_lossy_formats(kind: str) -> None:
    image = Image.open(MEDIA / "landscape.jpg").convert("RGB")
    made = decode_image(encode(image, kind))
    assert made.shape == (220, 300, 3)
    assert np.abs(made.astype(int) - np.asarray(image)).mean() < 12


def test_transparency_is_shown_on_white(pixels: np.ndarray) -> None:
    alpha = np.zeros((5, 9, 1), np.uint8)
    alpha[:, 4:] = 255
    made = decode_image(encode(Image.fromarray(np.concatenate([pixels, alpha], 2))))
    assert (made[:, :4] == 255).all()
    np.testing.assert_array_equal(made[:, 4:], pixels[:, 4:])


def test_grey_and_palette_images_become_rgb(pixels: np.ndarray) -> None:
    grey = Image.fromarray(pixels).convert("L")
    np.testing.assert_array_equal(decode_image(encode(grey)), np.asarray(grey)[..., None].repeat(3, 2))
    palette = Image.fromarray(pixels).convert("P")
    np.testing.assert_array_equal(decode_image(encode(palette)), np.asarray(palette.convert("RGB")))


GREY = np.linspace(0, 65535, 24).astype(np.uint16).reshape(4, 6)
"""From black to white in 16 bits."""


def tiff(values: np.ndarray, packed: bytes, bits: int) -> bytes:
    """A little-endian file of whole numbers, of which Pillow does not write all kinds."""
    height, width = values.shape
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: len(packed)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(packed)) + packed + directory


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encode(Image.fromarray(GREY)), GREY >> 8),
        (encode(Image.fromarray(GREY), "TIFF"), GREY >> 8),
        (encode(Image.frombytes("I;16B", (6, 4), GREY.astype(">u2").tobytes()), "TIFF"), GREY >> 8),
        (encode(Image.fromarray(GREY >> 9)), GREY >> 17),  # dark is dark, not 8 bits
        (encode(Image.fromarray(GREY.astype(np.int32)), "TIFF"), GREY >> 8),
        (encode(Image.fromarray((GREY >> 8).astype(np.int32)), "TIFF"), GREY >> 8),
        (encode(Image.fromarray((GREY >> 8).astype(np.float32)), "TIFF"), GREY >> 8),
        (encode(Image.fromarray((GREY >> 8).astype(np.float32) / 255), "TIFF"), GREY >> 8),
    ],
    ids=["png", "tiff", "tiff-big-endian", "dark", "int32", "int32-of-8-bits", "float-of-8-bits", "float"],
)
def test_grey_of_more_than_8_bits(data: bytes, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(decode_image(data), expected[..., None].repeat(3, 2))


def test_grey_of_12_bits() -> None:
    pairs = (GREY >> 4).reshape(-1, 2).tolist()
    packed = b"".join((first << 12 | second).to_bytes(3, "big") for first, second in pairs)
    made = decode_image(tiff(GREY, packed, 12))
    np.testing.assert_array_equal(made, (GREY >> 8)[..., None].repeat(3, 2))


def test_the_transparent_value_of_16_bit_grey_is_white() -> None:
    made = decode_image(encode(Image.fromarray(GREY), transparency=int(GREY[1, 2])))
    expected = GREY >> 8
    expected[1, 2] = 255
    np.testing.assert_array_equal(made, expected[..., None].repeat(3, 2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (GREY.astype(np.int32) - 1, r"grey values are -1\.\.65534; accepted are 0\.\.255 or 0\.\.65535"),
        (GREY.astype(np.int32) * 2, "0..131070; accepted"),
        (GREY.astype(np.float32), "0.0..65535.0; accepted are 0..1 or 0..255"),
        (np.full((2, 2), np.nan, np.float32), "nan..nan; accepted"),
        (np.full((2, 2), np.inf, np.float32), "inf..inf; accepted"),
    ],
)
def test_grey_that_says_not_what_is_white_is_refused(values: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        decode_image(encode(Image.fromarray(values), "TIFF"))


def test_exif_orientation_is_applied_to_16_bit_grey() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    made = decode_image(encode(Image.fromarray(GREY), exif=exif))
    np.testing.assert_array_equal(made[..., 0], np.rot90(GREY >> 8, -1))


def test_exif_orientation_is_applied(pixels: np.ndarray) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    made = decode_image(encode(Image.fromarray(pixels), exif=exif))
    np.testing.assert_array_equal(made, np.rot90(pixels, -1))


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n", b"hello" * 50, (MEDIA / "voice_8k.wav").read_bytes()])
def test_anything_else_is_an_error_that_names_the_formats(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="accepted formats: png, jpeg"):
        decode_image(data)


def test_a_truncated_image_is_an_error() -> None:
    data = (MEDIA / "portrait.png").read_bytes()
    with pytest.raises(InvalidArgument, match="accepted formats"):
        decode_image(data[: len(data) // 2])


def test_size_is_checked_before_decoding() -> None:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    with pytest.raises(InvalidArgument, match="too large|more than"):
        decode_image(bomb)
    with pytest.raises(InvalidArgument, match="300 x 220 pixels has more than 1000"):
        decode_image((MEDIA / "landscape.jpg").read_bytes(), max_pixels=1000)
