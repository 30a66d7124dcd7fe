"""`omni compile PIPELINE`: write the Triton model repository of a pipeline."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_python.commands.help import HelpFormatter

if TYPE_CHECKING:
    from omni_python.config.schema import PipelineConfig, StageConfig

_DESCRIPTION = """\
Check a pipeline and write its Triton models: the orchestrator <output>/<name>, which holds 1/pipeline.yaml, and one
model <output>/<name>_<process> for each process. Models that an earlier compilation of the pipeline left are removed.
"""

_EXAMPLES = """\
examples:
  omni compile qwen3_omni --model-path Qwen/Qwen3-Omni-30B-A3B-Instruct --gpu 0
  omni compile my_package.my_model.MyPipelineConfig --model-path ../checkpoints/mine --set thinker.max_batch=16
  omni compile model_repository/qwen3_omni/1/pipeline.yaml      # after editing that file
  omni compile pipeline.yaml --host speech --output speech/model_repository
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand on what `ArgumentParser.add_subparsers` returned."""
    from omni_python.models.catalog import PIPELINES

    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compile",
        help="write the Triton model repository of a pipeline",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "pipeline",
        metavar="PIPELINE",
        help=f"a known pipeline ({', '.join(PIPELINES)}), the dotted path of a PipelineConfig class, or a YAML file",
    )
    parser.add_argument(
        "--model-path",
        metavar="PATH",
        help="the checkpoint: a folder (a relative one counts from the model repository), or a Hugging Face id, which "
        "the server looks for in Hugging Face's cache, where `hf download ID` puts it",
    )
    parser.add_argument(
        "--name", help="the pipeline's name (default: its class's, else the last part of the model path)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("model_repository"),
        metavar="DIR",
        help="the model repository to write into (default: %(default)s)",
    )
    parser.add_argument(
        "--host",
        metavar="NAME",
        help="of a pipeline on several hosts, the one whose models to write: each has a repository of its own",
    )
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        dest="gpus",
        metavar="[STAGE=]GPU",
        help="put a stage on a GPU, or on several, as in thinker=[0,1]; without STAGE all that declare a share of a "
        "GPU's memory; may be repeated, and what comes later counts",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="STAGE.KEY=VALUE",
        help="set an argument of a stage's factory (runtime_overrides); VALUE is read as YAML; may be repeated",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object: the pipeline's name and the files that were written"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Compile and print the files that were written."""
    from omni_python.config.compile import compile_pipeline

    changes: dict[str, Any] = {}
    if args.model_path is not None:
        changes["model_path"] = args.model_path
    if args.name is not None:
        changes["name"] = args.name
    config = _load(args.pipeline, changes)
    if args.gpus:
        config = config.changed(stages=_placed(config, args.gpus))
    if args.overrides:
        config = config.changed(runtime_overrides=_overridden(config, args.overrides))
    files = [str(path) for path in compile_pipeline(config, args.output, args.host)]
    if args.json:
        print(json.dumps({"pipeline": config.resolved_name, "files": files}))
    else:
        print("\n".join(files))
    return 0


def _load(pipeline: str, changes: dict[str, Any]) -> PipelineConfig:
    """The pipeline behind a known name, a class or a file, with `changes` to its fields."""
    from omni_python.config.errors import config_error, did_you_mean
    from omni_python.config.files import config_class, load_pipeline
    from omni_python.models.catalog import PIPELINES

    path = Path(pipeline)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        config = load_pipeline(path)
        return config.changed(**changes) if changes else config
    dotted = PIPELINES.get(pipeline, pipeline)
    if "." not in dotted:
        known = ", ".join(PIPELINES)
        raise config_error(
            "",
            f"{pipeline!r} is no known pipeline{did_you_mean(pipeline, PIPELINES)} (known: {known}; "
            "or the dotted path of a class, or a YAML file)",
        )
    cls = config_class(dotted, "PIPELINE")
    if "model_path" not in changes and cls.model_fields["model_path"].is_required():
        raise config_error("", f"{pipeline} needs --model-path: a Hugging Face id or a checkpoint's folder")
    return cls(**changes)


def _placed(config: PipelineConfig, settings: list[str]) -> list[StageConfig]:
    """The pipeline's stages with settings like "0" and "talker_ar=1" applied in their order."""
    import yaml

    from omni_python.config.errors import config_error, did_you_mean
    from omni_python.config.memory import MEMORY_FRACTION
    from omni_python.config.placement import stage_arguments
    from omni_python.config.schema import StageConfig

    gpus: dict[str, Any] = {stage.name: stage.gpu for stage in config.stages}
    sharing = [stage.name for stage in config.stages if MEMORY_FRACTION in stage_arguments(config, stage)]
    for setting in settings:
        name, equals, text = setting.rpartition("=")
        if equals and name not in gpus:
            raise config_error("", f"--gpu {setting}: there is no stage {name!r}{did_you_mean(name, gpus)}")
        if not equals and not sharing:
            raise config_error("", f"--gpu {setting}: no stage declares {MEMORY_FRACTION}; name one: --gpu STAGE=0")
        try:
            gpu = yaml.safe_load(text)
        except yaml.YAMLError:
            gpu = text
        if not (isinstance(gpu, int | list) or text == "null"):
            known = "a GPU's number, a list of numbers like [0,1], or null for the CPU"
            raise config_error("", f"--gpu {setting}: {text!r} must be {known}")
        gpus.update(dict.fromkeys([name] if equals else sharing, gpu))
    return [StageConfig(**{**dict(stage), "gpu": gpus[stage.name]}) for stage in config.stages]


def _overridden(config: PipelineConfig, settings: list[str]) -> dict[str, dict[str, Any]]:
    """The pipeline's `runtime_overrides` with settings like "thinker.max_batch=16" on top."""
    import yaml

    from omni_python.config.errors import config_error

    overrides = {stage: dict(arguments) for stage, arguments in config.runtime_overrides.items()}
    for setting in settings:
        target, equals, text = setting.partition("=")
        stage, dot, key = target.partition(".")
        if not (equals and dot and stage and key.isidentifier()):
            raise config_error("", f"--set {setting}: must look like STAGE.KEY=VALUE, for example thinker.max_batch=16")
        try:
            overrides.setdefault(stage, {})[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise config_error("", f"--set {setting}: {text!r} is not a YAML value; quote it") from None
    return overrides
