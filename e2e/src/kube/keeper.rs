//! Ends processes that must not outlive the test program, however that ends.

use std::{
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

/// A shell that waits for the end of its standard input, which the test program holds open:
/// a program that is killed, or that ends without dropping its statics, closes it too.
pub(super) struct Keeper(Child);

/// Kills the group, then removes the directory.
const SCRIPT: &str = r#"cat >/dev/null; kill -s KILL -- "-$1"; rm -rf -- "$2""#;

// === impl Keeper ===

impl Keeper {
    /// Takes charge of a process group and a directory.
    pub(super) fn start(group: i32, dir: &Path) -> Self {
        let child = Command::new("sh")
            .args(["-c", SCRIPT, "keeper", &group.to_string()])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A group of its own: an interrupt from the terminal is for the test program.
            .process_group(0)
            .spawn();
        Self(child.expect("a shell must start"))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
