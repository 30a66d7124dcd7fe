"""Run the steps of docker/Dockerfile without a container engine, and start what they make.

    sudo scripts/check_image --torch-wheel torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl
    sudo scripts/check_image --build-arg TORCH_CPU_INDEX=URL

The steps are read from the Dockerfile and run as they are: each stage in a folder that becomes its root, COPY and RUN
in order, with the stage's variables, user and shell. The target then gets a model repository of no-op stages, and what
its ENTRYPOINT and CMD say is started as its USER: read-only but for /tmp and /dev/shm, in namespaces of its own, among
them one for the network that has nothing but loopback. It has to pass its HEALTHCHECK, answer a request over Triton's
HTTP and one over OpenAI's, and to stop when it is told.

What is not as in the image is what it starts from: no official Triton image, but Debian 12 with Python 3.11 (the image
has Ubuntu 24.04 with 3.12) and the tritonserver 24.10 of the nvidia-pytriton wheel, laid out as in the image. Nothing
of CUDA is checked, nor a newer server. For the image's own Python, `uv` tells (where it is on PATH) which packages both
targets would get: there must be a wheel of each, in a version that scripts/constraints.txt or torch pins.

It needs root, Linux on x86_64, debootstrap, and the packages of Debian and Python; 4 GB in --folder; some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import stat
import string
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, urlparse

REPOSITORY = Path(__file__).resolve().parent.parent
DOCKERFILE = REPOSITORY / "docker" / "Dockerfile"
SUITE, PYTHON = "bookworm", "3.11"
IMAGES_PYTHON, IMAGES_PLATFORM = "3.12", "x86_64-manylinux_2_28"
PACKAGES = ("python3", f"libpython{PYTHON}", "virtualenv", "ca-certificates", "curl")
SERVER = "/opt/tritonserver"
BASE_ENVIRONMENT = {
    "PATH": f"{SERVER}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "NVIDIA_TRITON_SERVER_VERSION": "24.10",
}
PIPELINE, MODEL = "omni_python.models.noop.config.NoopLinePipelineConfig", "noop_line"
START_SECONDS, STOP_SECONDS = 180, 90

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

# Starts the command, waits for its health check, asks, and stops it. Every argument is a command line for the shell.
SERVE = """
fail() { echo "$1; its last lines:"; tail -n 30 /tmp/log; exit 1; }
sh -c "exec $1" >/tmp/log 2>&1 & server=$!
for ((second = 0; ; second += 5)); do
    kill -0 $server 2>/dev/null || fail "it ended by itself"
    if sh -c "$2" 2>/dev/null; then break; fi
    ((second < $5)) || fail "it never was healthy"
    sleep 5
done
echo "healthy after $second s, as $(id -u):$(id -g)"
sh -c "$3" || fail "no answer over HTTP"
echo
sh -c "$4" || fail "no answer over OpenAI's API"
echo
kill -TERM $server
wait $server || fail "it ended with status $?"
echo "ended with status 0"
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


Mounts = Sequence[tuple[Path, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpu", help="the Dockerfile's target (default: cpu)")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE", help="as docker build has it")
    parser.add_argument("--torch-wheel", type=Path, metavar="FILE", help="a CPU build, instead of an index of them")
    parser.add_argument("--mirror", help="where debootstrap gets Debian's packages (default: its own)")
    parser.add_argument("--folder", type=Path, help="where to work (default: a new one below /var/tmp)")
    parser.add_argument("--keep", action="store_true", help="leave the roots there")
    options = parser.parse_args()
    check_machine()
    work = Path(tempfile.mkdtemp(prefix="check-image-", dir=options.folder or "/var/tmp"))
    try:
        check(work, options)
    finally:
        if options.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work)


def check_machine() -> None:
    missing = [name for name in ("debootstrap", "unshare", "chroot", "ip") if shutil.which(name) is None]
    if missing:
        sys.exit(
            f"missing: {', '.join(missing)} (on Debian and Ubuntu: apt-get install debootstrap util-linux iproute2)"
        )
    if os.geteuid() != 0:
        sys.exit("it needs root, to mount and to change the root folder")


def check(work: Path, options: argparse.Namespace) -> None:
    arguments = dict(argument.split("=", 1) for argument in options.build_arg)
    resolve()
    settings, mounts = pip_settings()
    if options.torch_wheel is not None:
        index = work / "index"
        make_index(index, options.torch_wheel)
        arguments["TORCH_CPU_INDEX"] = f"file://{index}"
        mounts = [*mounts, (index, str(index))]
    base = work / "base"
    done("a base in the place of Triton's image", make_base, base, work, options.mirror)
    target = build(work, base, options.target, arguments, settings, mounts)
    done("a model repository", compile_repository, target)
    done("start, ask, stop", serve, target)
    size = sum(path.lstat().st_size for path in (target.root / "opt" / "omni").rglob("*"))
    print(f"/opt/omni has {size / 2**20:.0f} MiB. The {options.target} target is built, starts, answers and stops.")


def done(title: str, step, *arguments):  # type: ignore[no-untyped-def]
    """What the step returns; with a line that says how long it took."""
    print(f"{title} ...", flush=True)
    start = time.monotonic()
    result = step(*arguments)
    print(f"    {time.monotonic() - start:.0f} s", flush=True)
    return result


# -- what it starts from


def make_base(root: Path, work: Path, mirror: str | None) -> None:
    """Debian with what the official image has of what the Dockerfile uses."""
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)]
    log = subprocess.run([*command, *filter(None, [mirror])], capture_output=True, text=True)
    if log.returncode:
        sys.exit(f"debootstrap failed:\n{log.stdout[-2000:]}{log.stderr}")
    lay_out_server(root, work)
    for line in (["useradd", "--uid", "1000", "--create-home", "triton-server"], ["ldconfig"]):
        subprocess.run(["chroot", root, *line], check=True, env=BASE_ENVIRONMENT)


def lay_out_server(root: Path, work: Path) -> None:
    constraints = (REPOSITORY / "scripts" / "constraints.txt").read_text("utf-8")
    (pinned,) = re.findall(r"^nvidia-pytriton==.*$", constraints, re.MULTILINE)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, f"--python-version={PYTHON}", f"--dest={work}", pinned], check=True)
    (wheel,) = work.glob("nvidia_pytriton-*.whl")
    zipfile.ZipFile(wheel).extractall(work / "wheel")
    server = root / SERVER.lstrip("/")
    shutil.move(work / "wheel" / "pytriton" / "tritonserver", server)
    shutil.move(work / "wheel" / "nvidia_pytriton.libs", server / "lib")
    name = "triton_python_backend_stub"
    shutil.move(server / "python_backend_stubs" / PYTHON / name, server / "backends" / "python" / name)
    shutil.rmtree(server / "python_backend_stubs")
    for program in (server / "bin" / "tritonserver", server / "backends" / "python" / name):
        program.chmod(0o755)
    (root / "etc" / "ld.so.conf.d" / "tritonserver.conf").write_text(f"{SERVER}/lib\n")


def pip_settings() -> tuple[dict[str, str], Mounts]:
    """This machine's settings of pip as variables, and what they name of its files: none of it stays in an image."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, value = line.split("=", 1)
        found["PIP_" + name.rpartition(".")[2].upper().replace("-", "_")] = " ".join(shlex.split(value))
    places = {Path("/etc/resolv.conf")}
    for word in " ".join(found.values()).split():
        if word.startswith("file:"):
            places.add(Path(urlparse(word).path).parent)  # an index may link to files beside it
        elif word.startswith("/"):
            places.add(Path(word))
    return found, [(place, str(place)) for place in places if place.exists()]


def resolve() -> None:
    """That both targets can be installed with the image's Python, all of it in pinned versions."""
    if shutil.which("uv") is None:
        print(f"no uv: what Python {IMAGES_PYTHON} would get is not checked")
        return
    for extras in re.findall(r"pip install '\.\[([a-z,]+)\]'", DOCKERFILE.read_text("utf-8")):
        done(f"what Python {IMAGES_PYTHON} gets of [{extras}]", resolve_extras, extras.split(","))


def resolve_extras(extras: Sequence[str]) -> None:
    constraints = REPOSITORY / "scripts" / "constraints.txt"
    wanted = ["--constraint", str(constraints), *(f"--extra={extra}" for extra in extras)]
    target = [f"--python-version={IMAGES_PYTHON}", f"--python-platform={IMAGES_PLATFORM}", "--only-binary=:all:"]
    result = subprocess.run(
        ["uv", "pip", "compile", "--quiet", "--no-header", *wanted, *target, str(REPOSITORY / "pyproject.toml")],
        capture_output=True,
        text=True,
    )
    if result.returncode:
        sys.exit(result.stderr)
    pinned = {plain(line.split("==")[0]) for line in constraints.read_text("utf-8").splitlines() if "==" in line}
    parts = re.split(r"\n(?=\S)", result.stdout.strip())
    free = [part.split()[0] for part in parts if plain(part.split("==")[0]) not in pinned and not by_torch(part)]
    if free:
        sys.exit(f"scripts/constraints.txt does not pin {', '.join(free)}")
    print(f"    {len(parts)} packages")


def by_torch(part: str) -> bool:
    """Of CUDA, in the versions that torch's own requirements say."""
    return part.startswith(("nvidia-", "cuda-", "triton=="))


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def make_index(folder: Path, wheel: Path) -> None:
    """Such an index as pip wants, of one wheel."""
    place = folder / wheel.name.split("-")[0]
    place.mkdir(parents=True)
    shutil.copy2(wheel, place)
    (place / "index.html").write_text(f'<a href="{quote(wheel.name)}">{wheel.name}</a>\n')


# -- the Dockerfile


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Names and arguments, in order."""
    lines = "\n".join(line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    for line in lines.replace("\\\n", " ").splitlines():
        name, rest = line.split(None, 1)
        yield name, rest.strip()


def stages(text: str) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """By name: what a stage starts from, and its instructions."""
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    current: list[tuple[str, str]] = []
    for name, rest in instructions(text):
        if name == "FROM":
            origin, _, stage = rest.split()
            current = []
            found[stage] = (origin, current)
        else:
            current.append((name, rest))
    return found


def needed(parts: Mapping[str, tuple[str, list[tuple[str, str]]]], target: str) -> list[str]:
    """The stages that a target is made of, each after those that it needs."""
    if target not in parts:
        return []
    origin, steps = parts[target]
    sources = [origin, *re.findall(r"--from=(\S+)", " ".join(rest for name, rest in steps if name == "COPY"))]
    return list(dict.fromkeys([*(stage for source in sources for stage in needed(parts, source)), target]))


def build(
    work: Path, base: Path, target: str, arguments: Mapping[str, str], settings: Mapping[str, str], mounts: Mounts
) -> Stage:
    parts = stages(DOCKERFILE.read_text("utf-8"))
    if target not in parts:
        sys.exit(f"there is no target {target} (there are {', '.join(parts)})")
    order = needed(parts, target)
    built: dict[str, Stage] = {}
    for number, name in enumerate(order):
        origin, steps = parts[name]
        before = built.get(origin, Stage(base, BASE_ENVIRONMENT))
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
            stage = follow(stage, step, rest, arguments, settings, mounts, built)
        built[name] = stage
    return built[target]


def follow(
    stage: Stage,
    name: str,
    rest: str,
    arguments: Mapping[str, str],
    settings: Mapping[str, str],
    mounts: Mounts,
    built: Mapping[str, Stage],
) -> Stage:
    """The stage after one instruction."""
    match name:
        case "ARG":
            argument, _, default = rest.partition("=")
            value = arguments.get(argument, default)
            return replace(stage, arguments={**stage.arguments, argument: value} if value else stage.arguments)
        case "ENV":
            pairs = (word.split("=", 1) for word in shlex.split(rest))
            given = {key: string.Template(value).substitute(stage.environment) for key, value in pairs}
            return replace(stage, environment={**stage.environment, **given})
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
            done(f"RUN {' '.join(rest.split())}", run, stage, rest, settings, mounts)
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


def run(stage: Stage, rest: str, settings: Mapping[str, str], mounts: Mounts) -> None:
    """A shell's command, with the network. What is written stays in the stage's root."""
    words = rest.split()
    flags = [word for word in words if word.startswith("--")]
    caches = [flag.partition("target=")[2] for flag in flags if "type=cache" in flag]
    command = rest
    for flag in flags[: next((place for place, word in enumerate(words) if not word.startswith("--")), 0)]:
        command = command.replace(flag, "", 1)
    cache = stage.root.parent.parent / "cache"
    cache.mkdir(exist_ok=True)
    environment = {**settings, **stage.environment, **stage.arguments, "HOME": "/root"}
    entered = enter(stage, "rw", [*mounts, *((cache, place) for place in caches)], environment, stage.user)
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


# -- what came out


def compile_repository(stage: Stage) -> None:
    """Where the image's command looks for it."""
    (place,) = [word.partition("=")[2] for word in stage.command if word.startswith("--model-repository=")]
    command = ["omni", "compile", PIPELINE, f"--output={place}"]
    environment = {**stage.environment, "HOME": "/root"}
    subprocess.run([*enter(stage, "rw", [], environment, "0:0"), *command], check=True)


def serve(stage: Stage) -> None:
    ports = dict(word.lstrip("-").split("=", 1) for word in stage.command if "-port=" in word)
    asked = f"http://127.0.0.1:{ports['http-port']}/v2/models/{MODEL}/generate"
    curl = ["curl", "--fail", "--silent", "--show-error"]
    lines = [
        [*stage.entrypoint, *stage.command],
        stage.health,
        [*curl, "--data", '{"text_input": "Hello", "nbytes": 3}', asked],
        [*curl, f"http://127.0.0.1:{ports['openai-port']}/v1/models"],
    ]
    script = ["bash", "-c", SERVE, "serve", *(shlex.join(line) for line in lines), str(START_SECONDS)]
    command = [*enter(stage, "ro", [], stage.environment, stage.user), *script]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=START_SECONDS + STOP_SECONDS)
    print("\n".join(f"    {line}" for line in result.stdout.splitlines() if line))
    if result.returncode or r"\"last\":2" not in result.stdout or f'"id":"{MODEL}"' not in result.stdout:
        sys.exit("it does not serve as it should")


if __name__ == "__main__":
    main()
