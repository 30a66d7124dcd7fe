"""Whether a window of sound is speech: the 16 kHz network of silero-vad, computed with numpy.

Only the weights come from the package silero-vad (version 6). Its TorchScript and ONNX files would need torch or
onnxruntime in the HTTP server, and TorchScript takes three times the 0.3 ms of CPU that a window takes here.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import numpy as np

SAMPLE_RATE = 16000
WINDOW = 512
"""Samples of one window, 32 ms."""
_CONTEXT = 64
"""Samples of the window before that the network sees again."""
_PAD, _FFT, _HOP = 64, 256, 128
_BINS = _FFT // 2 + 1
_STRIDES = (1, 2, 2, 1)
"""Of the four convolutions."""
_HIDDEN = 128
_ZERO = np.zeros(1, np.float32)
_FRAMES = np.lib.stride_tricks.sliding_window_view(np.pad(np.arange(_CONTEXT + WINDOW), (0, _PAD), "reflect"), _FFT)[
    ::_HOP
].copy()
"""The samples of each short spectrum, by their number; the end is mirrored."""


def weights_file() -> Path | None:
    """Where the package's weights lie; None where it is not installed. Does not import it: that imports torch."""
    spec = importlib.util.find_spec("silero_vad")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    files = (Path(folder) / "data" / "silero_vad_16k.safetensors" for folder in folders)
    return next((file for file in files if file.is_file()), None)


class SileroVad:
    """One stream of sound. Raises FileNotFoundError where silero-vad is not installed."""

    def __init__(self) -> None:
        self._weights = _weights()
        self._context = np.zeros(_CONTEXT, np.float32)
        self._hidden = self._cell = np.zeros(_HIDDEN, np.float32)

    def probability(self, window: np.ndarray) -> float:
        """How likely the stream's next samples, float32 [WINDOW] in -1..1, hold speech: 0..1."""
        weights = self._weights
        x = weights.features(np.concatenate([self._context, window]))
        self._context = window[-_CONTEXT:]
        gates = weights.input_gates @ x + weights.hidden_gates @ self._hidden + weights.gates_bias
        enter, forget, new, leave = np.split(gates, 4)  # PyTorch's order of an LSTM's gates
        self._cell = _sigmoid(forget) * self._cell + _sigmoid(enter) * np.tanh(new)
        self._hidden = _sigmoid(leave) * np.tanh(self._cell)
        return float(_sigmoid(weights.last @ np.maximum(self._hidden, 0) + weights.last_bias)[0])


class _Weights:
    def __init__(self, file: Path) -> None:
        from safetensors.numpy import load_file

        tensors = load_file(file)
        self._spectrum = tensors["stft_conv.weight"][:, 0]
        self._convolutions = []
        columns = len(_FRAMES)
        for n, stride in enumerate(_STRIDES, 1):
            weight, bias = tensors[f"conv{n}.weight"], tensors[f"conv{n}.bias"]
            taps = _taps(weight.shape[1], columns, stride)
            self._convolutions.append((weight.reshape(len(bias), -1), bias[:, None], taps))
            columns = taps.shape[1]
        self.input_gates, self.hidden_gates = tensors["lstm_cell.weight_ih"], tensors["lstm_cell.weight_hh"]
        self.gates_bias = tensors["lstm_cell.bias_ih"] + tensors["lstm_cell.bias_hh"]
        self.last, self.last_bias = tensors["final_conv.weight"][:, :, 0], tensors["final_conv.bias"]

    def features(self, samples: np.ndarray) -> np.ndarray:
        """float32 [_CONTEXT + WINDOW] to [_HIDDEN]: magnitudes of four short spectra, then four convolutions."""
        spectrum = self._spectrum @ samples[_FRAMES].T
        x = np.hypot(spectrum[:_BINS], spectrum[_BINS:])
        for weight, bias, taps in self._convolutions:
            x = np.maximum(weight @ np.append(x, _ZERO)[taps] + bias, 0)
        return x[:, 0]


def _taps(channels: int, columns: int, stride: int) -> np.ndarray:
    """Which elements of [channels, columns], with a zero behind them, a convolution of width 3 with one column of zeros
    on either side multiplies: int [3 channels, columns after it]."""
    numbers = np.full((channels, columns + 2), channels * columns)
    numbers[:, 1:-1] = np.arange(channels * columns).reshape(channels, columns)
    windows = np.lib.stride_tricks.sliding_window_view(numbers, 3, axis=1)[:, ::stride]
    return windows.transpose(0, 2, 1).reshape(3 * channels, -1)


@lru_cache(maxsize=1)
def _weights() -> _Weights:
    file = weights_file()
    if file is None:
        raise FileNotFoundError("the package silero-vad is not installed")
    return _Weights(file)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
