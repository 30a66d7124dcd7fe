"""Image files to RGB arrays."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from omni_python.preprocessing.container import Encoded, as_file
from omni_python.proto.errors import InvalidArgument

IMAGE_FORMATS = "png, jpeg, webp, gif, bmp, tiff"
MAX_PIXELS = 64_000_000
_DECODERS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")


def decode_image(data: Encoded, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """An encoded image as uint8 [height, width, 3], turned as its EXIF orientation says, transparency on white.

    Raises `InvalidArgument` for bytes that are no readable image, and for more than `max_pixels` of them (told from
    the header, before anything is decoded). Of an animation the first picture is taken.
    """
    if len(data) == 0:
        raise InvalidArgument(f"empty image file; accepted formats: {IMAGE_FORMATS}")
    try:
        image: Image.Image = Image.open(as_file(data), formats=_DECODERS)
        if image.width * image.height > max_pixels:
            size = f"{image.width} x {image.height}"
            raise InvalidArgument(f"image of {size} pixels has more than {max_pixels}, the most that is accepted")
        image = ImageOps.exif_transpose(image)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return np.asarray(image.convert("RGB"))
    except Image.DecompressionBombError as error:
        raise InvalidArgument(f"image is too large: {error}") from error
    except UnidentifiedImageError:
        raise InvalidArgument(f"unreadable image file; accepted formats: {IMAGE_FORMATS}") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:  # what Pillow's decoders raise on broken files
        raise InvalidArgument(f"unreadable image file ({error}); accepted formats: {IMAGE_FORMATS}") from error
