//! A cluster whose nodes run pods, by `just cluster`.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::Kubectl;
use crate::process::text;

/// A running cluster. One that this started goes with it; one that ran before stays.
pub struct Cluster {
    /// kubectl as an administrator, in the namespace `default`.
    pub kubectl: Kubectl,
    ours: bool,
}

// === impl Cluster ===

impl Cluster {
    /// Starts a cluster of so many nodes, or uses the one that runs, or that of `KUBECONFIG`.
    pub fn up(nodes: u8) -> Self {
        let ran = script("status").output();
        let ran = ran.expect("the script must start").status.success();
        run(script("up").arg(nodes.to_string()));
        let kubeconfig = run(&mut script("kubeconfig"));
        Self {
            kubectl: Kubectl::new(Path::new(kubeconfig.trim())),
            ours: !ran,
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
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.ours && !std::thread::panicking() {
            run(&mut script("down"));
        }
    }
}

fn script(command: &str) -> Command {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("cluster/cluster");
    let mut script = Command::new(program);
    script.arg(command).stdin(Stdio::null());
    script
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("the script must start");
    let args: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    assert!(
        output.status.success(),
        "just cluster {}: {}",
        args.join(" "),
        text(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
