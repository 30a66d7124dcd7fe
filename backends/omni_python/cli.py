"""The command `omni`: runs the subcommand that the arguments name."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

USAGE_ERROR = 2
"""Exit status for wrong input, the same that argparse uses."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status. Errors that a user can mend are one message on stderr."""
    with _ending_at_once():
        from omni_python.commands.parser import command_modules, create_parser
        from omni_python.config.errors import ConfigError
        from omni_python.proto.errors import OmniError

        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # rather a question mark than no answer
        args = create_parser().parse_args(argv)
    try:
        status: int = command_modules()[args.command].run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, `head` for example, has enough; as if SIGPIPE had ended this
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"omni {args.command}: {_what_failed(error)}", file=sys.stderr)
        return USAGE_ERROR
    except (ConfigError, OmniError) as error:
        print(f"omni {args.command}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130


@contextlib.contextmanager
def _ending_at_once() -> Iterator[None]:
    """Let Ctrl-C end this process without a word while modules are imported: out of some of them it would come as an
    ImportError."""
    own = signal.getsignal(signal.SIGINT)
    if own is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, own)


def _what_failed(error: OSError) -> str:
    """The file and the reason, without the number that only programmers know."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


if __name__ == "__main__":
    sys.exit(main())
