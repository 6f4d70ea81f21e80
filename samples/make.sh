#!/bin/sh
# Makes lighthouse.wav from flite's voice `rms`, with 0.9 s of silence between the sentences.
set -eu
cd "$(dirname "$0")"
parts=$(mktemp -d)
trap 'rm -r "$parts"' EXIT

flite -voice rms -t "The lighthouse keeper counted seven ships." -o "$parts/1.wav"
flite -voice rms -t "Each one carried salt and letters." -o "$parts/2.wav"
flite -voice rms -t "Every letter was answered the same evening." -o "$parts/3.wav"

python3 - "$parts"/*.wav <<'PYTHON'
import sys
import wave

parts = []
for path in sys.argv[1:]:
    with wave.open(path) as part:
        params = part.getparams()
        parts.append(part.readframes(params.nframes))
silence = bytes(round(0.9 * params.framerate) * params.sampwidth)
with wave.open("lighthouse.wav", "wb") as joined:
    joined.setparams(params)
    joined.writeframes(silence.join(parts))
PYTHON
