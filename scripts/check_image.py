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
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.image_base import BASE_ENVIRONMENT, make_base
from scripts.image_build import Given, Stage, build, done, enter
from scripts.image_packages import IMAGES_PYTHON, make_index, pip_settings, resolve
from scripts.image_steps import DOCKERFILE

PIPELINE, MODEL = "omni_python.models.noop.config.NoopLinePipelineConfig", "noop_line"
START_SECONDS, STOP_SECONDS = 180, 90

# Starts the command, waits for its health check, asks, and stops it. Every argument is a command line for the shell.
SERVE = """
log=$(mktemp)
fail() { echo "$1; its last lines:"; tail -n 30 "$log"; exit 1; }
sh -c "exec $1" >"$log" 2>&1 & server=$!
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
    check_packages()
    settings, places = pip_settings()
    if options.torch_wheel is not None:
        index = work / "index"
        make_index(index, options.torch_wheel)
        arguments["TORCH_CPU_INDEX"] = f"file://{index}"
        places.append(index)
    base = Stage(work / "base", BASE_ENVIRONMENT)
    done("a base in the place of Triton's image", make_base, base.root, work, options.mirror)
    given = Given(arguments, settings, [(place, str(place)) for place in places])
    target = build(work, base, options.target, given)
    done("a model repository", compile_repository, target)
    done("start, ask, stop", serve, target)
    size = sum(path.lstat().st_size for path in (target.root / "opt" / "omni").rglob("*"))
    print(f"/opt/omni has {size / 2**20:.0f} MiB. The {options.target} target is built, starts, answers and stops.")


def check_packages() -> None:
    """That both targets can be installed with the image's Python, all of it in pinned versions."""
    if shutil.which("uv") is None:
        print(f"no uv: what Python {IMAGES_PYTHON} would get is not checked")
        return
    for extras in re.findall(r"pip install '\.\[([a-z,]+)\]'", DOCKERFILE.read_text("utf-8")):
        done(f"what Python {IMAGES_PYTHON} gets of [{extras}]", resolve, extras.split(","))


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
