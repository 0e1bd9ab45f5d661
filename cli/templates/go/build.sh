#!/bin/sh
# Builds policy.wasm. Needs Go 1.21 or newer.
set -eu
cd "$(dirname "$0")"
GOOS=wasip1 GOARCH=wasm go build -trimpath -ldflags='-s -w' -o policy.wasm .
assent annotate policy.wasm --metadata metadata.json --output-file policy.wasm
