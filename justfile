# Recipes for developers and for continuous integration, which runs `just ci`.
# On a machine with nothing installed, use ./scripts/test

export ASSENT_CACHE := env('ASSENT_CACHE', home_directory() / '.cache/assent')
export CARGO_TARGET_DIR := env('CARGO_TARGET_DIR', ASSENT_CACHE / 'target')
export CARGO_TERM_COLOR := env('CARGO_TERM_COLOR', 'auto')

set shell := ['bash', '-euo', 'pipefail', '-c']

[private]
default:
    @just --list --unsorted

# several clones can share the target directory
[private]
freshen:
    @scripts/freshen

# every check and test, in the order of their cost
ci:
    @scripts/stages space tools fmt-check deny chart-check policies-check clippy doc test test-cluster

# free disk space for a complete run, if little is left
space:
    @scripts/space

# install the tools that the other recipes use
tools:
    @scripts/tools

# formatting
fmt-check:
    cargo fmt --all -- --check
    cargo fmt --manifest-path policies/Cargo.toml --all -- --check

# lints; shares the built dependencies with `doc`
clippy: freshen
    cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
    cargo clippy --quiet --locked --workspace --test cluster -- -D warnings
    cargo clippy --quiet --locked --manifest-path policies/Cargo.toml --target-dir "$ASSENT_CACHE/policies-target" --target wasm32-wasip1 -- -D warnings

# documentation; every broken link is an error
doc: freshen
    RUSTDOCFLAGS='-D warnings' cargo doc --quiet --locked --workspace --no-deps

# licences, sources and banned crates
deny:
    "$(scripts/tools cargo-deny)" --log-level warn --locked --workspace check bans licenses sources
    "$(scripts/tools cargo-deny)" --log-level warn --locked --manifest-path policies/Cargo.toml --config deny.toml check --allow license-not-encountered bans licenses sources

# example policies: a rebuild equals the committed modules, and OPA agrees with the Rego cases
policies-check:
    policies/check

# the chart: lint, many sets of values, permissions, alert rules; and the packing of images
chart-check:
    charts/check
    python3 -B images/test_pack.py

# OCI tarballs in dist/images, without a container engine; `just images dev` packs what the tests built
images profile='release': freshen
    images/build {{ profile }}

# all tests, or those whose name contains the filter
test *filter: freshen
    # Tests of real processes start the programs in the target directory and mostly wait for them: hence twice as many
    # tests in parallel as there are cores.
    cargo build --quiet --locked --workspace --bins
    eval "$(scripts/tools --env grpcurl helm opa opa-cases promtool prometheus registry etcd kube-apiserver kube-controller-manager kubectl envoy)" && RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) * 2))}" cargo test --quiet --locked --workspace -- {{ filter }}

# tests on a real Kubernetes cluster with nodes; needs root
test-cluster *filter: freshen
    images/build dev
    # One at a time: they share one cluster, and a fault of a node affects all of them.
    eval "$(scripts/tools --env grpcurl helm just kubectl prometheus promtool)" && cargo test --quiet --locked --workspace --test cluster -- --test-threads=1 {{ filter }}

# random faults, edits and load on a real cluster for some minutes; the record is checked; needs root
soak minutes='15': freshen
    images/build dev
    eval "$(scripts/tools --env grpcurl helm just kubectl prometheus promtool)" && ASSENT_SOAK_MINUTES={{ minutes }} cargo test --quiet --locked --workspace --test cluster -- --test-threads=1 --nocapture random_faults

# a real Kubernetes on this machine: up [NODES], down, status, kubectl …, load IMAGE.tar
[positional-arguments]
cluster *arguments:
    @e2e/cluster/cluster "$@"

# three evaluators and a policy on this machine, without Kubernetes
demo:
    scripts/demo

# benchmarks; run them on an idle machine
bench *arguments: freshen
    {{ if arguments =~ '^text' { 'eval "$(scripts/tools --env opa)" && ' } else { '' } }}cargo run --release --locked --package assent-bench -- {{ arguments }}
