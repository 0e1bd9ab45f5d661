//! Removes what must not outlive the test program, however that ends.

use std::{
    ffi::OsStr,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

/// A shell that waits for the end of its standard input, which the test program holds open,
/// and then runs a script: a program that is killed, or that ends without dropping its
/// statics, closes it too.
pub(super) struct CleanupGuard(Child);

// === impl CleanupGuard ===

impl CleanupGuard {
    /// Kills a process group, then removes a directory.
    pub(super) fn of_group(group: i32, dir: &Path) -> Self {
        let script = r#"kill -s KILL -- "-$1"; rm -rf -- "$2""#;
        Self::start(script, &[group.to_string().as_ref(), dir.as_os_str()])
    }

    /// Runs the script, with these arguments, when this is dropped or the program has ended.
    pub(super) fn start<A: AsRef<OsStr>>(script: &str, args: &[A]) -> Self {
        let child = Command::new("sh")
            .args(["-c", &format!("cat >/dev/null; {script}"), "cleanup"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A group of its own: an interrupt from the terminal is for the test program.
            .process_group(0)
            .spawn();
        Self(child.expect("a shell must start"))
    }
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn process_group_and_directory_are_removed() {
        let dir = tempfile::tempdir().expect("temporary directory must be made");
        let mut leader = Command::new("sleep");
        let mut leader = leader
            .arg("60")
            .process_group(0)
            .spawn()
            .expect("sleep must start");
        let group = i32::try_from(leader.id()).expect("a process id must fit");

        let cleanup = CleanupGuard::of_group(group, dir.path());
        assert!(dir.path().exists());
        drop(cleanup);
        assert!(!dir.path().exists());
        let status = leader.wait().expect("child must be ours");
        assert_eq!(status.signal(), Some(9));
    }
}
