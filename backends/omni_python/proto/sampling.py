"""Sampling parameters of one autoregressive stage, as a client sends them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from omni_python.proto.errors import InvalidArgument


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the next token is chosen, with vLLM's names.

    `temperature` 0 is greedy, and so is one below 1e-5. `top_k` 0, or more than there are tokens, keeps every token.
    `repetition_penalty` divides positive and multiplies negative logits of tokens already generated. `seed` None draws
    one. `stop` are strings that end the answer (text stages alone), few and short: they are looked for in every step.
    `max_tokens` counts generated tokens, the end token included.
    """

    temperature: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)] = 0.0
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0.0, le=10.0)] = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    stop: Annotated[list[Annotated[str, msgspec.Meta(max_length=256)]], msgspec.Meta(max_length=16)] = []
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 2048
    ignore_eos: bool = False

    def override(self, given: dict[str, Any], where: str) -> SamplingParams:
        """These parameters with the client's `given` values on top.

        Raises `InvalidArgument` naming `where`, the key, and what is valid.
        """
        fields = self.__struct_fields__
        unknown = sorted(set(given) - set(fields))
        if unknown:
            raise InvalidArgument(f"{where}: unknown key {unknown[0]!r}; valid keys: {', '.join(fields)}")
        stop = given.get("stop")
        if isinstance(stop, str):
            given = {**given, "stop": [stop]}
        try:
            return msgspec.convert({**msgspec.to_builtins(self), **given}, SamplingParams)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"{where}: {error}") from None
