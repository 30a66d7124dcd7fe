"""Image files to RGB arrays."""

from __future__ import annotations

import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from omni_python.preprocessing.container import DECODE_SECONDS, Encoded, TimeLimit, as_file
from omni_python.proto.errors import InvalidArgument, OmniError

IMAGE_FORMATS = "png, jpeg, webp, gif, bmp, tiff"
MAX_PIXELS = 64_000_000
_DECODERS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_BITS_PER_SAMPLE = 258
"""TIFF's number of this tag."""

# Bytes that Pillow's decoders are given at a time: a JPEG of many scans takes long over each piece.
_PIECE = 4096


def decode_image(data: Encoded, max_pixels: int = MAX_PIXELS, decode_seconds: float = DECODE_SECONDS) -> np.ndarray:
    """An encoded image as uint8 [height, width, 3], turned as its EXIF orientation says, transparency on white.

    Raises `InvalidArgument` for bytes that are no readable image, for more than `max_pixels` of them (told from
    the header, before anything is decoded), and for what takes longer than `decode_seconds`. Of an animation the first
    picture is taken.
    """
    if len(data) == 0:
        raise InvalidArgument(f"empty image file; accepted formats: {IMAGE_FORMATS}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images, which are refused here
            image = Image.open(as_file(data, TimeLimit(decode_seconds)), formats=_DECODERS)
        if image.width * image.height > max_pixels:
            size = f"{image.width} x {image.height}"
            raise InvalidArgument(f"image of {size} pixels has more than {max_pixels}, the most that is accepted")
        image.decodermaxblock = _PIECE
        return _rgb(image)
    except OmniError:
        raise
    except Image.DecompressionBombError as error:
        raise InvalidArgument(f"image is too large: {error}") from error
    except UnidentifiedImageError:
        raise InvalidArgument(f"unreadable image file; accepted formats: {IMAGE_FORMATS}") from None
    except Exception as error:  # on broken files Pillow's decoders raise whatever happens to them
        raise InvalidArgument(f"unreadable image file ({error}); accepted formats: {IMAGE_FORMATS}") from error


def _rgb(image: Image.Image) -> np.ndarray:
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith(("I", "F")):
        return np.asarray(Image.fromarray(_grey(image)).convert("RGB"))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _grey(image: Image.Image) -> np.ndarray:
    """A grey picture of more than 8 bits as uint8 [height, width], its transparent value white; Pillow's own conversion
    cuts off at 255.

    Whole numbers of 32 bits and floats say nothing about which of them is white; the likely ones are told apart by the
    largest value. Raises `InvalidArgument` for others.
    """
    values = np.asarray(image)
    if image.mode.startswith("I;16"):
        # Pillow gives the numbers of a TIFF file of 12 bits as they are.
        bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))[0]
        grey = (values >> (bits - 8)).astype(np.uint8)
    else:
        grey = _scaled(values)
    transparent = image.info.get("transparency")
    if transparent is not None:
        grey[values == transparent] = 255
    return grey


def _scaled(values: np.ndarray) -> np.ndarray:
    """int32 or float32 to uint8."""
    lowest, highest = values.min(), values.max()
    floats = values.dtype.kind == "f"
    if lowest >= 0 and floats and highest <= 1:
        return np.rint(values * np.float32(255)).astype(np.uint8)
    if lowest >= 0 and highest <= 255:
        return values.astype(np.uint8)
    if lowest >= 0 and not floats and highest <= 65535:
        return (values >> 8).astype(np.uint8)
    valid = "0..1 or 0..255 where they are floats" if floats else "0..255 or 0..65535"
    raise InvalidArgument(f"the picture's grey values are {lowest}..{highest}; accepted are {valid}")
