//! A cluster whose nodes run pods, by `just cluster`.

use std::{
    ffi::OsStr,
    path::Path,
    process::{Command, Stdio},
    sync::OnceLock,
};

use super::{Kubectl, cleanup::CleanupGuard};
use crate::process::{Process, text};

/// A running cluster. One that this started goes with it, or with the test program; one that
/// ran before stays, for somebody who wants to look at it.
pub struct Cluster {
    /// kubectl as an administrator, in the namespace `default`.
    pub kubectl: Kubectl,
    _cleanup: Option<CleanupGuard>,
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/cluster");

// === impl Cluster ===

impl Cluster {
    /// The one that tests of this program share: three nodes.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| Self::up(3))
    }

    /// Starts a cluster of so many nodes, or uses the one that runs, or that of `KUBECONFIG`.
    pub fn up(nodes: u8) -> Self {
        let ran = script("status").output();
        let ran = ran.expect("the script must start").status.success();
        let cleanup = (!ran).then(|| CleanupGuard::start(r#""$1" down"#, &[SCRIPT]));
        run(script("up").arg(nodes.to_string()));
        let kubeconfig = run(&mut script("kubeconfig"));
        Self {
            kubectl: Kubectl::new(Path::new(kubeconfig.trim())),
            _cleanup: cleanup,
        }
    }

    /// Makes an image known to every node.
    pub fn load(&self, image: &Path) {
        run(script("load").arg(image));
    }

    /// Runs a command inside a node, numbered from 1: what it wrote.
    pub fn node(&self, number: u8, command: &[&str]) -> String {
        run(script("node").arg(number.to_string()).args(command))
    }

    /// Runs a command inside a node; an error is what it wrote.
    pub fn try_node(&self, number: u8, command: &[&str]) -> Result<String, String> {
        attempt(script("node").arg(number.to_string()).args(command))
    }

    /// Starts a program inside a node, with its output in a file.
    pub fn start(&self, number: u8, command: &[&str], log: &Path) -> Process {
        Process::start(script("node").arg(number.to_string()).args(command), log)
    }
}

fn script(command: &str) -> Command {
    let mut script = Command::new(SCRIPT);
    script.arg(command).stdin(Stdio::null());
    script
}

fn run(command: &mut Command) -> String {
    let output = attempt(command);
    let args: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    output.unwrap_or_else(|e| panic!("just cluster {}: {e}", args.join(" ")))
}

fn attempt(command: &mut Command) -> Result<String, String> {
    let output = command.output().expect("the script must start");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(text(&output)),
    }
}
