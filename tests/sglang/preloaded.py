"""What the fork server of `child` imports, once for all of its children: else most of their time would go there."""

from omni_python.sglang_engine.parallel import import_sglang
from tests.sglang import child

__all__ = ["child"]

import_sglang(None)
