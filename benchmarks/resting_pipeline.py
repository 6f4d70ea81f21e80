"""A pipeline at rest in a process of its own, which imports nothing but the supervisor; `resting` measures it.

Prints the pids of its stages as a JSON object by name, and stays until its standard input ends.
"""

from __future__ import annotations

import json
import sys

from supervisor import Pipeline, PipelineConfig

REQUESTS = 200


def main() -> None:
    """Run some requests, then rest."""
    stages = [{"name": name, "engine": "stage.engines.countdown:Countdown"} for name in ("first", "second")]
    with Pipeline(PipelineConfig.from_dict({"name": "resting", "stages": stages})) as pipeline:
        for handle in [pipeline.submit(2) for _ in range(REQUESTS)]:
            handle.result(timeout_s=30)
        print(json.dumps({stage.name: stage.pid for stage in pipeline.stages}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
