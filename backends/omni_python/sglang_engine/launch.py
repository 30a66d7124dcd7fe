"""Starting an SGLang `Scheduler` inside this process: its arguments, what it reads as a model, and its rendezvous.

SGLang keeps much of its state in its modules, so a process can hold one at a time.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any, Protocol

import torch

from omni_python.proto.errors import OmniError
from omni_python.sglang_engine import cpu_kernels
from omni_python.sglang_engine.config import EngineConfig

SUPPORTED = ("0.5.17",)
"""Versions of sglang that this package was written for and tested with."""


def check_version() -> None:
    """Raises `OmniError` where sglang is missing or is a version that this module was not written for."""
    wanted = " or ".join(SUPPORTED)
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        raise OmniError(
            f'engine "sglang" needs the package sglang {wanted}, which is not installed; engine "torch" needs none'
        ) from None
    if version not in SUPPORTED:
        raise OmniError(f'engine "sglang" works with sglang {wanted}, but {version} is installed')


class Outputs(Protocol):
    """Gets what SGLang would send to its own front end."""

    def send_output(self, output: Any, origin: Any = None) -> None: ...


_holder: Outputs | None = None


def start_scheduler(config: EngineConfig, outputs: Outputs) -> Any:
    """The `Scheduler` with its weights loaded and, on a GPU, its decode steps captured.

    Raises `OmniError` where sglang is missing or this process has an engine already.
    """
    global _holder
    check_version()
    if _holder is not None:
        raise OmniError(
            'only one stage of a process can have engine "sglang"; give the other one a process of its own, or "torch"'
        )
    cpu_kernels.prepare(config.gpu_id is not None)
    if config.dtype == torch.float32:
        os.environ["TRITON_F32_DEFAULT"] = "ieee"  # else its products of float32 keep 10 bits of mantissa
    logging.getLogger("sglang").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = _scheduler(config)
    scheduler.ipc_channels = dataclasses.replace(
        scheduler.ipc_channels, send_to_detokenizer=outputs, send_to_tokenizer=outputs
    )
    scheduler.output_streamer.send_to_detokenizer = outputs
    _holder = outputs
    return scheduler


def leave_groups() -> None:
    """End SGLang's process groups, of a process that shares them with no other, before the interpreter's end does."""
    from sglang.srt.distributed import parallel_state

    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()


def _scheduler(config: EngineConfig) -> Any:
    from sglang.srt.managers.scheduler import Scheduler, publish
    from sglang.srt.models.registry import ModelRegistry
    from sglang.srt.server_args import PortArgs, ServerArgs

    from omni_python.sglang_engine.decoder import OmniDecoder

    ModelRegistry.models[OmniDecoder.__name__] = OmniDecoder
    _size_cache_by_tokens_alone()
    with tempfile.TemporaryDirectory(prefix="omni-sglang-") as directory:
        # A group of one process needs no rendezvous over the network.
        _meet_at(f"file://{directory}/rendezvous" if config.tp_port is None else "env://", config)
        model = Path(directory) / "model"
        _model_directory(config, model)
        arguments = ServerArgs(model_path=str(model), **_arguments(config))
        channel = f"ipc://{directory}/channel"
        ports = PortArgs(channel, channel, channel, 0, channel, channel, None, None)
        publish(arguments, role="scheduler")
        scheduler = Scheduler(arguments, ports, config.gpu_id or 0, config.tp_rank, 0, 0, 0, 0, None)
    if config.dummy:
        scheduler.tp_worker.model_runner.model.draw_weights()
    return scheduler


def _size_cache_by_tokens_alone() -> None:
    """SGLang sizes the KV cache by the memory that is free while it starts, up to `max_total_tokens`: on a GPU that
    other processes load on at the same time that is a lottery. How much fits is decided before (`EngineConfig`)."""
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    KVCacheConfigurator._profile_available_bytes = lambda self, pre_model_load_memory: 1 << 60
    os.environ["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] = "0"  # by free memory as well


def _meet_at(method: str, config: EngineConfig) -> None:
    """Where the ranks find each other, and over which device they talk: never over the network."""
    os.environ["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] = method
    os.environ["SGLANG_USE_MESSAGE_QUEUE_BROADCASTER"] = "0"  # shared memory that nobody reads
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if config.tp_port is None:
        # Nobody to watch; the thread would look for orders in the rendezvous, which is gone by then, and hang the end.
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    else:
        rank, size = str(config.tp_rank), str(config.tp_size)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(config.tp_port), RANK=rank, WORLD_SIZE=size)
        # The newer one is compiled while it starts, and uses NVLink multicast, which not all hosts allow.
        os.environ.setdefault("SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2", "0")
        # The first GPU often has other stages, too.
        os.environ.setdefault("SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK", "0")
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # rank 0's owner has opened that port
        os.environ.setdefault("TORCHELASTIC_RESTART_COUNT", "0")  # older versions of torch read it
        if config.gpu_id is None:
            # Else SGLang wants a NUMA node for each rank. Its kernels for some CPUs alone use it.
            os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "|".join(["all"] * config.tp_size))


def _arguments(config: EngineConfig) -> dict[str, Any]:
    gpu = config.gpu_id is not None
    return {
        "device": "cuda" if gpu else "cpu",
        "tp_size": config.tp_size,
        "dtype": str(config.dtype).removeprefix("torch."),
        "attention_backend": "triton" if gpu else "torch_native",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "skip_tokenizer_init": True,
        "load_format": "dummy" if config.dummy else "auto",
        # The next step cannot be launched before the owner has seen this one's tokens: an answer may end by its text,
        # and the talker's next input needs a token of the text that comes from elsewhere.
        "disable_overlap_schedule": True,
        "disable_radix_cache": config.feedback,
        "chunked_prefill_size": -1 if config.feedback else config.prefill_tokens,
        "enable_mixed_chunk": not config.feedback,
        "max_prefill_tokens": config.prefill_tokens,
        "disable_prefill_cuda_graph": True,  # prompts come as embeddings
        "max_total_tokens": config.kv_tokens,
        "max_running_requests": config.max_running,
        "cuda_graph_max_bs_decode": config.max_running,
        "mem_fraction_static": 0.9,
        "random_seed": 0,
        "watchdog_timeout": 1e9,  # it would end this process
        "log_level": "error",
    }


def _model_directory(config: EngineConfig, directory: Path) -> None:
    """What SGLang reads as a model: the decoder's own config, and the checkpoint's weights by links."""
    directory.mkdir()
    extra = {
        "architectures": ["OmniDecoder"],
        "model_type": "qwen3_moe",
        "dtype": str(config.dtype).removeprefix("torch."),
        "eos_token_id": None,
        "omni_weights": dict(config.weights),
        "omni_deepstack": config.deepstack_layers,
        "omni_tap": config.tap,
        "omni_slots": config.kv_tokens + 64,
        "omni_rows": config.max_running,
        "omni_feedback": config.feedback,
    }
    (directory / "config.json").write_text(json.dumps({**config.text_config, **extra}), "utf-8")
    if config.dummy:
        return
    for file in config.checkpoint.resolve().glob("*.safetensors*"):
        (directory / file.name).symlink_to(file)
