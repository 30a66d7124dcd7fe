"""What is left of servers that are gone, among processes of any kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from omni_python.serve.leftovers import remove_leftover_regions


def test_arguments_of_others_may_be_any_bytes() -> None:
    """Of every process the name of a server is looked for, where there is a region whose server may be gone."""
    with subprocess.Popen(["true"]) as gone:
        pass
    region = Path(f"/dev/shm/omni_{gone.pid}_0a1b2c3d_region")
    with subprocess.Popen([sys.executable, "-c", "input()", b"--id=\xff"], stdin=subprocess.PIPE) as other:
        try:
            region.write_bytes(b"x")
            remove_leftover_regions()
            assert not region.exists()
        finally:
            region.unlink(missing_ok=True)
            other.kill()
