//! Third-party tools that check Assent's interfaces.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

/// Path of a tool, from the environment.
pub fn tool(variable: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(path) => path.into(),
        None => panic!(
            "{variable} is not set: run the tests by `just test`, or `eval \"$(scripts/tools --env)\"` first"
        ),
    }
}

/// `promtool check metrics` with an exposition on its standard input.
pub fn promtool(exposition: &[u8]) -> Output {
    let mut child = Command::new(tool("ASSENT_PROMTOOL"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool must start");
    let mut stdin = child.stdin.take().expect("standard input must be piped");
    stdin.write_all(exposition).expect("promtool must read");
    drop(stdin);
    child.wait_with_output().expect("promtool must end")
}

/// Runs grpcurl without TLS.
pub fn grpcurl(args: &[&str]) -> Output {
    let output = Command::new(tool("ASSENT_GRPCURL"))
        .arg("-plaintext")
        .args(args)
        .output();
    output.expect("grpcurl must start")
}
