"""Building a target of docker/Dockerfile without a container engine: each stage in a folder that becomes its root."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import string
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from scripts.image_steps import DOCKERFILE, REPOSITORY, needed, stages

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Mounts = Sequence[tuple[Path, str]]
"""Folders and files of this machine, and where they are to be in the root."""

# In namespaces of its own: $1 is the root, $2 "ro" or "rw", $3 how many pairs of folders follow, of which the first is
# mounted at the second; the rest is the command.
ENTER = """
root=$1 mode=$2 mounts=$3; shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
for ((; mounts > 0; mounts--)); do
    if [[ -d $1 ]]; then mkdir -p "$root$2"; else mkdir -p "$(dirname "$root$2")"; touch "$root$2"; fi
    mount --bind "$1" "$root$2"
    shift 2
done
mkdir -p "$root/dev/shm"
mount -t proc proc "$root/proc"
if [[ $mode == ro ]]; then
    ip link set lo up
    mount -o remount,bind,ro "$root"
    mount -t tmpfs -o mode=1777 tmp "$root/tmp"
fi
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
exec "$@"
"""


@dataclass(frozen=True)
class Stage:
    """What a stage of the Dockerfile is so far."""

    root: Path
    environment: Mapping[str, str]
    arguments: Mapping[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health: tuple[str, ...] = ()


@dataclass(frozen=True)
class Given:
    """What a build gets beside the Dockerfile: its arguments, pip's variables, and what of this machine it may see."""

    arguments: Mapping[str, str] = field(default_factory=dict)
    pip_settings: Mapping[str, str] = field(default_factory=dict)
    mounts: Mounts = ()


def done(
    title: str, step: Callable[Arguments, Result], *arguments: Arguments.args, **names: Arguments.kwargs
) -> Result:
    """What the step returns; with a line that says how long it took."""
    print(f"{title} ...", flush=True)
    start = time.monotonic()
    result = step(*arguments, **names)
    print(f"    {time.monotonic() - start:.0f} s", flush=True)
    return result


def build(work: Path, base: Stage, target: str, given: Given) -> Stage:
    """The target's stage, with its root below `work`; the base's root is used up."""
    parts = stages(DOCKERFILE.read_text("utf-8"))
    if target not in parts:
        sys.exit(f"there is no target {target} (there are {', '.join(parts)})")
    order = needed(parts, target)
    built: dict[str, Stage] = {}
    for number, name in enumerate(order):
        origin, steps = parts[name]
        before = built.get(origin, base)
        used_again = any(parts[later][0] == origin for later in order[number + 1 :])
        root = work / "roots" / name
        root.parent.mkdir(exist_ok=True)
        if used_again:
            subprocess.run(["cp", "-a", "--reflink=auto", before.root, root], check=True)
        else:
            before.root.rename(root)
        stage = replace(before, root=root, arguments={})
        print(f"FROM {origin} AS {name}", flush=True)
        for step, rest in steps:
            stage = follow(stage, step, rest, given, built)
        built[name] = stage
    return built[target]


def follow(stage: Stage, name: str, rest: str, given: Given, built: Mapping[str, Stage]) -> Stage:
    """The stage after one instruction."""
    match name:
        case "ARG":
            argument, _, default = rest.partition("=")
            value = given.arguments.get(argument, default)
            return replace(stage, arguments={**stage.arguments, argument: value} if value else stage.arguments)
        case "ENV":
            pairs = (word.split("=", 1) for word in shlex.split(rest))
            variables = {key: string.Template(value).substitute(stage.environment) for key, value in pairs}
            return replace(stage, environment={**stage.environment, **variables})
        case "WORKDIR":
            inside(stage, rest).mkdir(parents=True, exist_ok=True)
            return replace(stage, folder=rest)
        case "USER":
            return replace(stage, user=rest)
        case "SHELL":
            return replace(stage, shell=tuple(json.loads(rest)))
        case "ENTRYPOINT":
            return replace(stage, entrypoint=tuple(json.loads(rest)), command=())
        case "CMD":
            return replace(stage, command=tuple(json.loads(rest)))
        case "HEALTHCHECK":
            return replace(stage, health=tuple(json.loads(rest[rest.index("[") :])))
        case "COPY":
            done(f"COPY {rest}", copy, stage, rest, built)
        case "RUN":
            done(f"RUN {' '.join(rest.split())}", run, stage, rest, given)
        case "LABEL" | "EXPOSE":
            pass
        case _:
            sys.exit(f"{name} is not known here")
    return stage


def inside(stage: Stage, place: str) -> Path:
    return stage.root / os.path.join(stage.folder, place).lstrip("/")


def copy(stage: Stage, rest: str, built: Mapping[str, Stage]) -> None:
    words = shlex.split(rest)
    source_of = next((word.removeprefix("--from=") for word in words if word.startswith("--from=")), None)
    *sources, target = (word for word in words if not word.startswith("--"))
    for source in sources:
        origin = REPOSITORY / source if source_of is None else built[source_of].root / source.lstrip("/")
        place = inside(stage, target)
        if origin.is_dir():
            ignored = shutil.ignore_patterns("__pycache__") if source_of is None else None
            shutil.copytree(origin, place, symlinks=True, dirs_exist_ok=True, ignore=ignored)
        else:
            if target.endswith("/"):
                place.mkdir(parents=True, exist_ok=True)
            shutil.copy2(origin, place)
            place = place / origin.name if place.is_dir() else place
            place.chmod(place.stat().st_mode | stat.S_IRGRP | stat.S_IROTH)


def run(stage: Stage, rest: str, given: Given) -> None:
    """A shell's command, with the network. What is written stays in the stage's root."""
    words = rest.split()
    flags = [word for word in words if word.startswith("--")]
    caches = [flag.partition("target=")[2] for flag in flags if "type=cache" in flag]
    command = rest
    for flag in flags[: next((place for place, word in enumerate(words) if not word.startswith("--")), 0)]:
        command = command.replace(flag, "", 1)
    cache = stage.root.parent.parent / "cache"
    cache.mkdir(exist_ok=True)
    environment = {**given.pip_settings, **stage.environment, **stage.arguments, "HOME": "/root"}
    entered = enter(stage, "rw", [*given.mounts, *((cache, place) for place in caches)], environment, stage.user)
    result = subprocess.run([*entered, *stage.shell, command.strip()], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"it ended with status {result.returncode}:\n{result.stdout[-3000:]}{result.stderr[-3000:]}")


def enter(stage: Stage, mode: str, mounts: Mounts, environment: Mapping[str, str], user: str) -> list[str]:
    """A command line that runs another one, which is to be appended, in the stage's root."""
    spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *(["--net"] if mode == "ro" else [])]
    places = [part for host, place in mounts for part in (str(host), place)]
    variables = [f"{name}={value}" for name, value in environment.items()]
    return [
        *[*spaces, "bash", "-euc", ENTER, "enter", str(stage.root), mode, str(len(mounts)), *places],
        *["chroot", f"--userspec={user}", str(stage.root), "env", "-i", "-C", stage.folder, *variables],
    ]
