//! Runs the binary and reads its output.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// The result of one run.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

// === impl Done ===

impl Done {
    #[track_caller]
    pub(crate) fn expect(&self, code: i32) -> &Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Standard error contains this, and nothing panicked.
    #[track_caller]
    pub(crate) fn says(&self, part: &str) -> &Self {
        assert!(self.err.contains(part), "no {part:?} in {self:#?}");
        assert!(!self.err.contains("panicked"), "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The binary, without the environment of this process.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_assent"));
    command.args(args).env_clear().stdin(Stdio::null());
    command
}

pub(crate) fn assent(args: &[&str]) -> Done {
    command(args).output().unwrap().into()
}

pub(crate) fn assent_with_input(args: &[&str], input: &[u8]) -> Done {
    let mut command = command(args);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap().into()
}

/// A directory of the example policies.
pub(crate) fn policy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../policies")
        .join(name)
}

pub(crate) fn module(name: &str) -> String {
    policy(name)
        .join("policy.wasm")
        .to_str()
        .unwrap()
        .to_owned()
}

/// One case of an example policy.
pub(crate) fn case(policy_name: &str, name: &str) -> Value {
    let path = policy(policy_name)
        .join("tests")
        .join(format!("{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A directory with files, by name and content.
pub(crate) struct Files(TempDir);

// === impl Files ===

impl Files {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Self {
        let dir = Self(TempDir::new().unwrap());
        for (name, content) in files {
            std::fs::write(dir.0.path().join(name), content).unwrap();
        }
        dir
    }

    /// Adds or replaces a file, with its directories.
    pub(crate) fn add(&self, name: &str, content: &[u8]) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }
}
