"""Which kernels compute a stage's decode steps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal, get_args

from omni_python.layers.decoder import Decoder
from omni_python.layers.fused_decoder import unsupported
from omni_python.proto.errors import InvalidArgument

Kernels = Literal["auto", "plain", "fused"]
"""What computes decode steps: plain operations, or fused kernels in captured graphs, which need a Hopper GPU and
Triton; "auto" takes these where they can run, and logs which."""

logger = logging.getLogger(__name__)


def captured_rows(kernels: Kernels, stage: str, decoders: Sequence[Decoder], max_running: int) -> int:
    """For how many requests decode steps are captured with the fused kernels; 0 where plain operations are used.

    Raises InvalidArgument for a word that is not known, and where "fused" is asked for and cannot be.
    """
    if kernels not in get_args(Kernels):
        raise InvalidArgument(f"kernels {kernels!r} is not known; valid: {', '.join(get_args(Kernels))}")
    if kernels == "plain":
        return 0
    reasons = [unsupported(decoder.config, decoder.norm.weight) for decoder in decoders]
    reason = next((reason for reason in reasons if reason is not None), None)
    if reason is None:
        logger.info("the %s decodes with fused kernels", stage)
        return max_running
    if kernels == "fused":
        raise InvalidArgument(f'the {stage} cannot use kernels "fused": {reason}; say "auto" or "plain"')
    logger.info("the %s decodes with plain operations: of the fused kernels, %s", stage, reason)
    return 0
