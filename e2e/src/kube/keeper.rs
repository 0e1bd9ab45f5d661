//! Ends what must not outlive the test program, however that ends.

use std::{
    ffi::OsStr,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

/// A shell that waits for the end of its standard input, which the test program holds open,
/// and then runs a script: a program that is killed, or that ends without dropping its
/// statics, closes it too.
pub(super) struct Keeper(Child);

// === impl Keeper ===

impl Keeper {
    /// Runs the script, with these arguments, when this is dropped or the program has ended.
    pub(super) fn start<A: AsRef<OsStr>>(script: &str, args: &[A]) -> Self {
        let child = Command::new("sh")
            .args(["-c", &format!("cat >/dev/null; {script}"), "keeper"])
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

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
