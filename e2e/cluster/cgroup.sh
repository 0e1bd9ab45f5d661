# The control groups of a cluster: source it, don't run it. Every process of the cluster is in them, those of pods
# included: that is how they are found, whatever became of those that started them.
# shellcheck shell=bash

cgroups=/sys/fs/cgroup

is_cgroup2() { [[ -e $cgroups/cgroup.controllers ]]; }

# The hierarchies: one, or with version 1 one for each controller.
cgroup_hierarchies() {
    if is_cgroup2; then
        echo "$cgroups"
    else
        printf '%s\n' "$cgroups"/*/ | sed 's#/$##'
    fi
}

# The directory in which our processes are counted.
cgroup_of_processes() {
    if is_cgroup2; then echo "$cgroups/$1"; else echo "$cgroups/pids/$1"; fi
}

# make_cgroups GROUP NODES: one for the parts of the cluster, one for the pods of each node.
make_cgroups() {
    local group=$1 nodes=$2 hierarchy number
    is_cgroup2 || [[ -d $cgroups/pids ]] || die "the cgroup controller pids is not mounted below $cgroups"
    while read -r hierarchy; do
        mkdir -p "$hierarchy/$group/parts"
        ! is_cgroup2 || enable_controllers "$hierarchy" "$hierarchy/$group"
        fill_cpuset "$hierarchy/$group"
        for ((number = 1; number <= nodes; number++)); do
            mkdir -p "$hierarchy/$group/node$number"
            fill_cpuset "$hierarchy/$group/node$number"
        done
    done < <(cgroup_hierarchies)
}

# Version 2: children have the controllers that their parent hands down.
enable_controllers() {
    local directory controller
    for directory in "$@"; do
        for controller in cpu cpuset memory pids io hugetlb; do
            echo "+$controller" >"$directory/cgroup.subtree_control" 2>/dev/null || true
        done
        for controller in cpu cpuset memory pids; do
            grep -qw "$controller" "$directory/cgroup.subtree_control" ||
                die "the cgroup controller $controller can't be enabled in $directory, which kubelets need"
        done
    done
}

# Version 1: a new group may use no processor until it is told which.
fill_cpuset() {
    local file
    [[ $1 == "$cgroups"/cpuset/* ]] || return 0
    for file in cpuset.cpus cpuset.mems; do
        cat "$(dirname "$1")/$file" >"$1/$file"
    done
}

# enter_cgroup GROUP: moves the calling shell, and with it what it becomes.
enter_cgroup() { echo "$BASHPID" >"$(cgroup_of_processes "$1")/parts/cgroup.procs"; }

processes_in() { find "$(cgroup_of_processes "$1")" -name cgroup.procs -exec cat {} + 2>/dev/null; }

# in_cgroup GROUP PID: whether a process is one of ours.
in_cgroup() { grep -qE ":/$1(/|\$)" "/proc/$2/cgroup" 2>/dev/null; }

# kill_cgroup GROUP: all at once, and again, since some start others until they are dead.
kill_cgroup() {
    local attempt processes
    for ((attempt = 0; attempt < 100; attempt++)); do
        mapfile -t processes < <(processes_in "$1")
        [[ ${#processes[@]} -gt 0 ]] || return 0
        kill -9 "${processes[@]}" 2>/dev/null || true
        sleep 0.1
    done
    die "these processes don't end: ${processes[*]}"
}

# The kernel may still be busy with the last processes.
remove_cgroups() {
    local hierarchy attempt
    while read -r hierarchy; do
        for ((attempt = 0; attempt < 50; attempt++)); do
            [[ -d $hierarchy/$1 ]] || break
            find "$hierarchy/$1" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
        done
        [[ ! -d $hierarchy/$1 ]] || die "$hierarchy/$1 can't be removed"
    done < <(cgroup_hierarchies)
}
