#!/bin/sh
# Builds policy.wasm. Needs the target once: rustup target add wasm32-wasip1
set -eu
cd "$(dirname "$0")"
cargo build --release --target wasm32-wasip1
assent annotate "${CARGO_TARGET_DIR:-target}/wasm32-wasip1/release/{{ident}}.wasm" --metadata metadata.json --output-file policy.wasm
