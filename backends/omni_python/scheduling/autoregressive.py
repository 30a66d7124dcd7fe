"""What the schedulers of autoregressive stages have in common, whatever engine computes the steps."""

from __future__ import annotations

import abc
from typing import Generic

from omni_python.model_runner.base import ARModelRunner, R
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.work import IncomingMessage
from omni_python.scheduling.torch_loop import TorchLoopScheduler


class AutoregressiveScheduler(TorchLoopScheduler, Generic[R]):
    """Gives a row's messages to the model runner, and what the runner emits to the outbox."""

    _runner: ARModelRunner[R]

    @abc.abstractmethod
    def _row(self, request_id: str) -> R | None:
        """The request's row; None where there is none (any more)."""

    @abc.abstractmethod
    def _admit_row(self, row: R) -> None:
        """Keep a new row. Raises `InvalidArgument` where it never fits."""

    def take(self, message: IncomingMessage) -> None:
        row = self._row(message.request_id)
        if row is None:
            if message.type != "stream_done":
                opened = self._runner.open(message)
                if opened is not None:
                    self._admit_row(opened)
            return
        if message.type == "stream_chunk":
            self._runner.take_chunk(row, message.data)
        elif message.type == "stream_done":
            self._runner.take_done(row)
        if row.finish_reason is not None:
            self._emit(row)

    def _emit(self, row: R) -> None:
        try:
            messages = self._runner.emit(row)
        except Exception as error:
            self.fail(row.request_id, error)
            return
        for message in messages:
            self.outbox.put(message)
        if row.finish_reason is not None:
            self.drop(row.request_id)

    @staticmethod
    def _check_fits(row: R, room: int) -> None:
        """Raises `InvalidArgument` where prompt and max_tokens are more than `room` tokens of KV cache."""
        if row.prompt_len + row.max_tokens <= room:
            return
        advice = f"ask for max_tokens of at most {room - row.prompt_len}" if row.prompt_len < room else "shorten it"
        raise InvalidArgument(
            f"a prompt of {row.prompt_len} tokens and max_tokens {row.max_tokens} do not fit into the {room} "
            f"tokens of this stage's KV cache; {advice}"
        )
