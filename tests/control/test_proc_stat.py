"""What the kernel says of real processes."""

from __future__ import annotations

import subprocess
import sys

from omni_python.control.proc_stat import is_running, process_stat

LONG_NAME = "é" * 8
"""16 bytes, of which the kernel keeps 15: half a character at the end."""


def test_a_name_that_is_cut_within_a_character() -> None:
    code = f"import sys; open('/proc/self/comm', 'wb').write({LONG_NAME.encode()!r}); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"\n"
            with open(f"/proc/{child.pid}/stat", "rb") as file:
                assert LONG_NAME.encode()[:15] + b")" in file.read()
            found = process_stat(child.pid)
            assert found is not None and found.is_running and found.age < 600
            child.kill()
        finally:
            child.kill()
    assert not is_running(child.pid)
