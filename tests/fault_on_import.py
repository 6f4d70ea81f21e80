"""An engine's module that acts out a fault while it is imported.

The stage's variable FAULT says which; FAULT_NTH and FAULT_ANNOUNCE are as `nth` and `announce` of `FaultEngine`.
"""

from __future__ import annotations

import os

from engines_for_tests import FaultEngine

__all__ = ["FaultEngine"]

if "FAULT" in os.environ:
    _engine = FaultEngine(
        "import", os.environ["FAULT"], int(os.environ.get("FAULT_NTH", "1")), os.environ.get("FAULT_ANNOUNCE")
    )
    _engine.reach("import")
