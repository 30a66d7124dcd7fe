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
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
