"""An engine's module that acts out a fault while it is imported: the stage's variable FAULT says which."""

from __future__ import annotations

import os

from engines_for_tests import ACTIONS, FaultEngine

__all__ = ["FaultEngine"]

if "FAULT" in os.environ:
    ACTIONS[os.environ["FAULT"]](FaultEngine("import"))
