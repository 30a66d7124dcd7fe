"""Makes the small media files that the oracle and the tests read: `python tests/oracle/make_media.py`.

They are committed, for encoders of another version would make other bytes. All content is synthetic.
"""

from __future__ import annotations

import wave
from pathlib import Path

import av
import numpy as np
from PIL import Image

MEDIA = Path(__file__).parent / "media"


def voice(seconds: float, rate: int, seed: int) -> np.ndarray:
    """Something like a voice: gliding harmonics under a syllable envelope, with breath noise; float64 [n] in -1..1."""
    noise = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    pitch = 120 + 40 * np.sin(2 * np.pi * 0.7 * time + seed) + 15 * np.sin(2 * np.pi * 3 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    harmonics = range(1, 12)
    tone = sum(np.sin(k * phase) / k * (1 + np.cos(2 * np.pi * time * (0.3 + 0.2 * k))) for k in harmonics)
    syllables = np.clip(np.sin(2 * np.pi * 2.3 * time + seed), 0, None) ** 0.5
    return 0.18 * tone * syllables + 0.01 * noise.standard_normal(time.size)


def picture(width: int, height: int, shift: float = 0.0) -> np.ndarray:
    """A sky over textured ground with a round sun at `shift` (0..1 of the width); uint8 [height, width, 3]."""
    noise = np.random.default_rng(7)
    y, x = np.mgrid[0:height, 0:width] / np.array([height, width])[:, None, None]
    ground = y > 0.6 + 0.05 * np.sin(9 * x)
    texture = noise.standard_normal((height, width)) * 12
    sky = np.stack([90 + 80 * y, 140 + 60 * y, 220 - 40 * y], -1)
    earth = np.stack([110 + texture, 90 + texture, 50 + 40 * np.sin(40 * x) ** 2], -1)
    image = np.where(ground[..., None], earth, sky)
    sun = np.hypot((x - 0.2 - 0.6 * shift) * width / height, y - 0.3) < 0.13
    image[sun] = (250, 220, 90)
    return np.clip(image, 0, 255).astype(np.uint8)


def write_wav(name: str, samples: np.ndarray, rate: int) -> None:
    with wave.open(str(MEDIA / name), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def write_mp4(name: str, frames: int, fps: int, sound: np.ndarray | None = None, rate: int = 16000) -> None:
    with av.open(str(MEDIA / name), "w") as container:
        video = container.add_stream("libx264", rate=fps, options={"crf": "30", "threads": "1"})
        video.width, video.height, video.pix_fmt = 128, 96, "yuv420p"
        audio = None
        if sound is not None:
            audio = container.add_stream("aac", rate=rate, layout="mono")
            audio.bit_rate = 32000
        for index in range(frames):
            image = picture(128, 96, index / max(frames - 1, 1))
            container.mux(video.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(video.encode())
        if audio is not None and sound is not None:
            frame = av.AudioFrame.from_ndarray(sound[None].astype(np.float32), format="fltp", layout="mono")
            frame.sample_rate = rate
            container.mux(audio.encode(frame))
            container.mux(audio.encode())


def main() -> None:
    MEDIA.mkdir(exist_ok=True)
    write_wav("voice_16k.wav", voice(2.37, 16000, 0), 16000)
    write_wav("voice_short_16k.wav", voice(0.81, 16000, 3), 16000)
    write_wav("voice_8k.wav", voice(1.5, 8000, 1), 8000)
    left = voice(0.5, 44100, 2)
    write_wav("stereo_44k.wav", np.stack([left, 0.5 * np.roll(left, 40)], 1), 44100)
    Image.fromarray(picture(300, 220)).save(MEDIA / "landscape.jpg", quality=85)
    Image.fromarray(picture(150, 230, 0.6)).save(MEDIA / "portrait.png")
    write_mp4("silent.mp4", frames=24, fps=10)
    write_mp4("talking.mp4", frames=38, fps=12, sound=voice(3.1, 16000, 5))


if __name__ == "__main__":
    main()
