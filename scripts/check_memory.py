"""Whether the stages of the published size keep to their shares of a GPU's memory; random weights, no server.

    PYTHONPATH=.:backends python3 scripts/check_memory.py [--gpu 0] [--config tests/models/published_config.json]

Each process of the pipeline is built alone, with the shares that `Qwen3OmniSpeechPipelineConfig` declares, and worked:
the encoders with a minute of video of the largest frames, the largest picture, ten minutes of sound and a batch of
requests; thinker and talker with prompts. Printed are the share, what the allocator held at most, what the card says
that the process took in all, and what a patch, a frame and a prompt's token took beside the weights against what was
reckoned. Then what must be refused: kv_tokens that do not fit, and a process that finds its share taken by others.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch

from omni_python.config.memory import MEMORY_FRACTION, memory_shares, share_table
from omni_python.config.schema import PipelineConfig
from omni_python.config.topology import resolve_topology
from omni_python.layers.kv_cache import AttentionPlan, KVRow
from omni_python.models.qwen3_omni import stages, tiny
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.models.qwen3_omni.payloads import AudioInput, VisionInput
from omni_python.pipeline.build import build_stages
from omni_python.pipeline.gpu_share import take_gpu_share
from omni_python.proto.errors import OmniError
from omni_python.scheduling.memory_budget import CONTEXT_BYTES, gib, prefill_bytes

STEP = 3072
"""Patches of a temporal step of the largest video: 768 x 1024 pixels."""
LARGEST_PICTURE = (224, 224)
"""Of 3584 x 3584 pixels in patches of 16, all that the published processor lets through."""


def pipeline(model_path: Path, gpu: int) -> PipelineConfig:
    config = Qwen3OmniSpeechPipelineConfig(model_path=str(model_path))
    placed = [
        stage.model_copy(update={"gpu": gpu, "factory_args": {**stage.factory_args, "load_format": "dummy"}})
        if MEMORY_FRACTION in stage.factory_args
        else stage
        for stage in config.stages
    ]
    return Qwen3OmniSpeechPipelineConfig(model_path=str(model_path), stages=placed)


def built(config: PipelineConfig, process: str, gpu: int) -> dict[str, Any]:
    """The schedulers of a process; prints what they hold."""
    made = {spec.name: scheduler for spec, scheduler in build_stages(config, process, Path("/"))}
    report(config, process, gpu, "started")
    return made


def report(config: PipelineConfig, process: str, gpu: int, when: str) -> None:
    free, total = torch.cuda.mem_get_info(gpu)
    share = sum(share.fraction or 0.0 for share in memory_shares(config)[gpu] if share.process == process)
    held, most = torch.cuda.memory_reserved(gpu), torch.cuda.max_memory_reserved(gpu)
    print(
        f"{process} {when}: share {gib(int(share * total))} (allocator {gib(int(share * total) - CONTEXT_BYTES)}), "
        f"reserved now {gib(held)}, at most {gib(most)}; the card in all {gib(total - free)}, so "
        f"{gib(total - free - held)} beside the allocator",
        flush=True,
    )


def peak_of(gpu: int, work: Any) -> int:
    """Bytes that `work` allocates at most beside what is there."""
    torch.cuda.synchronize(gpu)
    before = torch.cuda.memory_allocated(gpu)
    torch.cuda.reset_peak_memory_stats(gpu)
    work()
    torch.cuda.synchronize(gpu)
    return torch.cuda.max_memory_allocated(gpu) - before


def check_front(config: PipelineConfig, gpu: int) -> None:
    made = built(config, "front", gpu)
    vision = made["image_encoder"]._compute_batch.__self__
    audio = made["audio_encoder"]._compute_batch.__self__
    print(f"front: {vision.max_batch_patches} patches, {audio.max_batch_frames} mel frames at once", flush=True)

    def video(steps: int, rows: int = 48, columns: int = 64) -> VisionInput:
        grid = torch.tensor([[steps, rows, columns]])
        return VisionInput(video_pixels=torch.randn(steps * rows * columns, 1536), video_grids=grid)

    for patches in (STEP, 4 * STEP):
        took = peak_of(gpu, lambda patches=patches: vision(video(patches // STEP)))
        print(f"front: {patches} patches took {took / patches:.0f} bytes each, reckoned {vision.bytes_per_patch}")
    for name, given in (("a minute of video", video(60)), ("the largest picture", video(1, *LARGEST_PICTURE))):
        try:
            took = peak_of(gpu, lambda given=given: vision(given))
            print(f"front: {name}: {gib(took)} beside the weights", flush=True)
        except OmniError as error:
            print(f"front: {name}: REFUSED: {error}", flush=True)
    seconds = 600
    sound = AudioInput(torch.randn(128, 100 * seconds), torch.tensor([100 * seconds]))
    took = peak_of(gpu, lambda: audio(sound))
    frames = min(audio.max_batch_frames // 800 * 800, 100 * seconds)
    print(f"front: {seconds} s of sound: {gib(took)}, {took / frames:.0f} bytes a frame of a forward, "
          f"reckoned {audio.bytes_per_frame}")  # fmt: skip
    took = peak_of(gpu, lambda: list(vision.encode([video(3) for _ in range(8)])))
    print(f"front: 8 requests of 3 steps together: {gib(took)}", flush=True)
    report(config, "front", gpu, "after work")


def check_decoder(config: PipelineConfig, process: str, stage: str, gpu: int) -> None:
    scheduler = built(config, process, gpu)[stage]
    decoder = getattr(scheduler._runner, "_thinker", None) or scheduler._runner._talker
    tokens, model = 8192, decoder.model
    print(f"{process}: {scheduler._pool.num_pages * 16} tokens of KV cache", flush=True)
    pages = range(min(tokens // 16, scheduler._pool.num_pages))
    tokens = len(pages) * 16
    embeds = torch.randn(tokens, model.config.hidden, dtype=model.norm.weight.dtype, device=f"cuda:{gpu}")
    positions = torch.arange(tokens, device=embeds.device).float().expand(3, -1)

    @torch.inference_mode()
    def prefill() -> None:
        plan = AttentionPlan.build([KVRow(pages, 0, tokens)], embeds.device)
        model(embeds, positions, scheduler._runner.cache, plan)

    took = peak_of(gpu, prefill)
    reckoned = prefill_bytes(model.config, tokens, 2)
    print(f"{process}: a prompt of {tokens} tokens took {gib(took)}, reckoned {gib(reckoned)}", flush=True)
    report(config, process, gpu, "after work")


def check_refusals(config: PipelineConfig, gpu: int) -> None:
    path = config.model_path
    try:
        stages.create_talker(path, gpu, kv_tokens=10**7, load_format="dummy", total_gpu_memory_fraction=0.12)
        print("refusals: FAILED: ten million tokens were accepted")
    except OmniError as error:
        print(f"refusals: {error}")
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info(gpu)[1]
    taken = torch.empty(int(0.5 * total), dtype=torch.uint8, device=f"cuda:{gpu}")
    group = next(group for group in resolve_topology(config).groups if group.name == "thinker")
    try:
        take_gpu_share(config, group)
        print("refusals: FAILED: a taken share was accepted")
    except OmniError as error:
        print(f"refusals: {error}")
    del taken


def guarded(name: str, check: Any, *args: Any) -> None:
    try:
        check(*args)
    except Exception:
        print(f"{name}: FAILED", flush=True)
        traceback.print_exc()
        raise SystemExit(1) from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--config", type=Path, default=Path("tests/models/published_config.json"))
    args = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        model_path = Path(folder) / "model"
        tiny.build(model_path)  # for its tokenizer and processor
        for file in model_path.glob("*.safetensors*"):
            file.unlink()
        published = json.loads(args.config.read_text("utf-8"))
        vocabulary = published["thinker_config"]["text_config"]["vocab_size"]
        given = tiny.with_token_ids(published)
        given["thinker_config"]["text_config"]["vocab_size"] = vocabulary
        (model_path / "config.json").write_text(json.dumps(given), "utf-8")
        config = pipeline(model_path, args.gpu)
        print("\n".join(share_table(memory_shares(config)[args.gpu])), flush=True)
        checks: dict[str, tuple[Any, ...]] = {
            "front": (check_front, config, args.gpu),
            "speech": (check_decoder, config, "speech", "talker_ar", args.gpu),
            "thinker": (check_decoder, config, "thinker", "thinker", args.gpu),
            "refusals": (check_refusals, config, args.gpu),
        }
        for name, check in checks.items():
            process = multiprocessing.get_context("spawn").Process(target=guarded, args=(name, *check))
            process.start()
            process.join()
            if process.exitcode:
                failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
