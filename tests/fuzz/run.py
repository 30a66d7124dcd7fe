"""Fuzz one target with atheris: scripts/fuzz TARGET --seconds N."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("target", choices=sorted(path.name for path in CORPUS.iterdir()))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--memory-mb", type=int, default=2048, help="more resident memory than this is a finding")
    parser.add_argument("--findings", type=Path, default=Path(".omni/fuzz"), help="folder for inputs that fail")
    options = parser.parse_args()

    import atheris

    with atheris.instrument_imports(
        include=["omni_python", "tests.fuzz.targets", "PIL", "yaml"], enable_loader_override=False
    ):
        from tests.fuzz.targets import TARGETS

    logging.disable()  # of what is refused
    findings = options.findings / options.target
    findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:  # what is found goes there, so that the committed corpus stays small
        shutil.copytree(CORPUS / options.target, work, dirs_exist_ok=True)
        atheris.Setup(
            [
                sys.argv[0],
                work,
                f"-max_total_time={options.seconds}",
                f"-rss_limit_mb={options.memory_mb}",
                "-timeout=20",
                "-max_len=65536",
                "-print_final_stats=1",
                f"-artifact_prefix={findings}/",
            ],
            TARGETS[options.target],
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
