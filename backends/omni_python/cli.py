"""The command `omni`: runs the subcommand that the arguments name."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from omni_python.commands.parser import command_modules, create_parser
from omni_python.config.errors import ConfigError
from omni_python.proto.errors import OmniError

USAGE_ERROR = 2
"""Exit status for wrong input, the same that argparse uses."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status. Errors that a user can mend are one message on stderr."""
    args = create_parser().parse_args(argv)
    try:
        status: int = command_modules()[args.command].run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, `head` for example, has enough; as if SIGPIPE had ended this
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ConfigError, OmniError, OSError) as error:
        print(f"omni {args.command}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
