//! How much memory this evaluator may use: the limit of its container, or of the machine.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// How the memory of a process is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// Bodies of requests.
    pub(crate) bodies: u64,
    /// Sandboxes, compiled code, and what the host needs for evaluations.
    pub(crate) evaluations: u64,
}

const MIB: u64 = 1 << 20;

/// What the process takes before it evaluates anything: its own code, the runtime, connections, the set of policies.
const BASE: u64 = 64 * MIB;

/// 36 of the largest admission reviews, or all of the typical ones that may wait.
const BODIES: u64 = 256 * MIB;

/// The least that makes sense: one guest with a small memory. Below that every request would be refused.
const LEAST: u64 = 32 * MIB;

/// A limit of cgroups version 1 that is larger means that there is none.
const NO_LIMIT: u64 = 1 << 60;

// === impl MemoryPlan ===

impl MemoryPlan {
    /// Divides a budget for requests and evaluations.
    pub(crate) fn of_budget(budget: u64) -> Self {
        let budget = budget.max(LEAST);
        let bodies = (budget / 4).min(BODIES);
        Self {
            bodies,
            evaluations: budget - bodies,
        }
    }

    /// Divides what a process with this limit may use. A quarter is left for what is not counted: allocators keep
    /// some of what was freed, and modules are compiled beside the evaluations.
    pub(crate) fn of_limit(limit: u64) -> Self {
        let uncounted = (limit / 4).max(BASE);
        Self::of_budget(limit.saturating_sub(uncounted))
    }

    /// The plan for this process: `budget` if it is given, else from the limit of the container or of the machine.
    pub(crate) fn detect(budget: Option<u64>) -> Self {
        match (budget, memory_limit()) {
            (Some(budget), _) => Self::of_budget(budget),
            (None, Some(limit)) => Self::of_limit(limit),
            (None, None) => {
                tracing::warn!("the memory limit of this process is not known: assuming 1 GiB");
                Self::of_limit(1024 * MIB)
            }
        }
    }
}

/// The memory that this process may use, with everything that shares its container; none if that is not known.
pub fn memory_limit() -> Option<u64> {
    limit(Path::new("/"))
}

/// The smallest limit that applies to this process. `root` is the root of the file system.
fn limit(root: &Path) -> Option<u64> {
    let cgroups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let groups = cgroups.lines().filter_map(|line| group_limit(root, line));
    let machine = fs::read_to_string(root.join("proc/meminfo"));
    let machine = machine.ok().and_then(|text| machine_memory(&text));
    groups.chain(machine).min()
}

/// The limit of one line of `/proc/self/cgroup`: `0::<path>` (version 2) or `<number>:<controllers>:<path>`.
fn group_limit(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let (mount, file) = if number == "0" && controllers.is_empty() {
        ("sys/fs/cgroup", "memory.max")
    } else if controllers.split(',').any(|name| name == "memory") {
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
    } else {
        return None;
    };
    smallest(&root.join(mount), group, file)
}

/// The smallest limit of a group and those around it. In a container the path may be that of the host, of which only
/// the group of the container is mounted, as the root.
fn smallest(mount: &Path, group: &str, file: &str) -> Option<u64> {
    let group = Path::new(group.trim_start_matches('/'));
    let around = group.ancestors().map(|group| mount.join(group).join(file));
    around.filter_map(read_limit).min()
}

fn read_limit(path: PathBuf) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    // Version 2 writes `max` if there is none.
    let limit = text.trim().parse().ok()?;
    (limit < NO_LIMIT).then_some(limit)
}

/// `MemTotal` of `/proc/meminfo`, which counts in KiB.
fn machine_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Parses an amount of memory as in the resources of a container: `512Mi`, `2G`, `1000000`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    assent_core::quantity::bytes(text)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "expected a number of bytes such as 512Mi, 2G or 1000000".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A file system with these files.
    fn mk_root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    #[track_caller]
    fn check(files: &[(&str, &str)], expected: Option<u64>) {
        assert_eq!(limit(mk_root(files).path()), expected);
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:   2048 kB\nMemFree: 1 kB\n");

    #[test]
    fn version_2_limits_are_read() {
        let group = ("proc/self/cgroup", "0::/\n");
        check(
            &[MEMINFO, group, ("sys/fs/cgroup/memory.max", "1048576\n")],
            Some(1 << 20),
        );
        check(
            &[MEMINFO, group, ("sys/fs/cgroup/memory.max", "max\n")],
            Some(2 << 20),
        );
    }

    #[test]
    fn the_smallest_limit_of_all_groups_around_counts() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/kubepods/pod1/c1\n"),
            ("sys/fs/cgroup/kubepods/pod1/c1/memory.max", "max\n"),
            ("sys/fs/cgroup/kubepods/pod1/memory.max", "4096\n"),
            ("sys/fs/cgroup/kubepods/memory.max", "8192\n"),
        ];
        check(&files, Some(4096));
    }

    #[test]
    fn version_1_limits_are_read() {
        let group = ("proc/self/cgroup", "5:cpu:/a\n4:memory:/docker/abc\n");
        let mounted = "sys/fs/cgroup/memory/memory.limit_in_bytes";
        // The path is that of the host, which the container does not see.
        check(&[MEMINFO, group, (mounted, "65536\n")], Some(65536));
        check(
            &[MEMINFO, group, (mounted, "9223372036854771712\n")],
            Some(2 << 20),
        );
        let hybrid = ("proc/self/cgroup", "4:memory:/a\n0::/a\n");
        let files = [
            MEMINFO,
            hybrid,
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "77\n"),
        ];
        check(&files, Some(77));
    }

    #[test]
    fn unreadable_limits_do_not_count() {
        check(&[], None);
        check(&[MEMINFO], Some(2 << 20));
        let group = ("proc/self/cgroup", "garbage\n0:\n0::/\n");
        check(
            &[MEMINFO, group, ("sys/fs/cgroup/memory.max", "garbage")],
            Some(2 << 20),
        );
    }

    #[test]
    fn a_plan_fits_its_limit() {
        for limit in [0, 1, 64 * MIB, 256 * MIB, 1024 * MIB, 64 << 30, u64::MAX] {
            let plan = MemoryPlan::of_limit(limit);
            let sum = plan.bodies + plan.evaluations;
            assert!(sum >= LEAST, "{limit}");
            assert!(sum <= (limit - limit / 4).max(LEAST), "{limit}");
            assert!(
                plan.bodies <= BODIES && plan.evaluations >= sum / 2,
                "{limit}"
            );
        }
        // The default limit of an injected evaluator has room for a guest with the default limit.
        assert!(MemoryPlan::of_limit(256 * MIB).evaluations > 128 * MIB);
    }

    #[test]
    fn quantities_are_parsed() {
        assert_eq!(parse_bytes("512Mi"), Ok(512 * MIB));
        assert_eq!(parse_bytes("2G"), Ok(2_000_000_000));
        assert_eq!(parse_bytes("100"), Ok(100));
        assert_eq!(parse_bytes("1.5Gi"), Ok(1536 * MIB));
        for bad in ["", "Mi", "-1", "0", "99999999999Gi", "1 Mi"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}
