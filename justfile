# Recipes for people and for continuous integration, which runs `just ci` and nothing else.
# On a machine without anything installed: ./scripts/test

export ASSENT_CACHE := env('ASSENT_CACHE', home_directory() / '.cache/assent')
export CARGO_TARGET_DIR := env('CARGO_TARGET_DIR', ASSENT_CACHE / 'target')
export CARGO_TERM_COLOR := env('CARGO_TERM_COLOR', 'auto')

set shell := ['bash', '-euo', 'pipefail', '-c']

[private]
default:
    @just --list --unsorted

# several clones may share the target directory
[private]
freshen:
    @scripts/freshen

# every check and test, in the order of their cost
ci:
    @scripts/stages tools fmt-check deny chart-check policies-check clippy doc test test-cluster

# install the tools that the other recipes use
tools:
    @scripts/tools

# formatting
fmt-check:
    cargo fmt --all -- --check
    cargo fmt --manifest-path policies/Cargo.toml --all -- --check

# lints; shares its dependencies with `doc`
clippy: freshen
    cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
    cargo clippy --quiet --locked --workspace --test cluster -- -D warnings
    cargo clippy --quiet --locked --manifest-path policies/Cargo.toml --target-dir "$ASSENT_CACHE/policies-target" --target wasm32-wasip1 -- -D warnings

# documentation, with every broken link an error
doc: freshen
    RUSTDOCFLAGS='-D warnings' cargo doc --quiet --locked --workspace --no-deps

# licences, sources and banned crates
deny:
    "$(scripts/tools cargo-deny)" --log-level warn --locked --workspace check bans licenses sources
    "$(scripts/tools cargo-deny)" --log-level warn --locked --manifest-path policies/Cargo.toml --config deny.toml check --allow license-not-encountered bans licenses sources

# example policies: committed modules equal a rebuild, and OPA agrees with the Rego cases
policies-check:
    policies/check

# the chart: lint, many sets of values, permissions, alert rules; and how images are packed
chart-check:
    charts/check
    python3 -B images/test_pack.py

# OCI tarballs in dist/images, without a container engine; `just images dev` packs what the tests built
images profile='release': freshen
    images/build {{ profile }}

# all tests, or those whose name contains the filter
test *filter: freshen
    # Tests of real processes start the programs that are in the target directory, and mostly wait for them: twice as
    # many at a time as there are cores.
    cargo build --quiet --locked --workspace --bins
    eval "$(scripts/tools --env grpcurl helm opa promtool prometheus registry etcd kube-apiserver kube-controller-manager kubectl)" && RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) * 2))}" cargo test --quiet --locked --workspace -- {{ filter }}

# tests on a real Kubernetes with nodes: root is needed
test-cluster *filter: freshen
    images/build dev
    # One after the other: they install Assent in one cluster, and what one does to a node it does to all.
    eval "$(scripts/tools --env grpcurl helm just kubectl prometheus promtool)" && cargo test --quiet --locked --workspace --test cluster -- --test-threads=1 {{ filter }}

# a real Kubernetes on this machine: up [NODES], down, status, kubectl …, load IMAGE.tar
[positional-arguments]
cluster *arguments:
    @e2e/cluster/cluster "$@"

# three evaluators and a policy on this machine, without Kubernetes
demo:
    scripts/demo

# benchmarks: an idle machine, please
bench *arguments: freshen
    cargo run --release --locked --package assent-bench -- {{ arguments }}
