//! Programs of this workspace as child processes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use crate::PATIENCE;

/// A child that is killed when the test lets go of it.
pub struct Process(pub Child);

/// Where a program of this workspace was built.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test must know its own program");
    // target/debug/deps/test-1234 → target/debug/name
    let built = test
        .ancestors()
        .nth(2)
        .expect("tests must be in target/debug/deps")
        .join(name);
    assert!(
        built.exists(),
        "{} is missing: run `cargo build --workspace --bins` first, or the tests by `just test`",
        built.display()
    );
    built
}

/// Runs `assent` to its end.
pub fn assent(args: &[&str]) -> Output {
    let output = Command::new(program("assent"))
        .args(args)
        .stdin(Stdio::null())
        .output();
    output.expect("assent must start")
}

/// What a program wrote, for people and for `contains`.
pub fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

// === impl Process ===

impl Process {
    /// Starts a command with its output appended to a file.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let log = fs::File::options().create(true).append(true).open(log);
        let log = log.expect("log must be opened");
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("log must be shared"))
            .stderr(log)
            .spawn();
        Self(child.expect("the program must start"))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let signal = rustix::process::Signal::from_named_raw(signal).expect("signal must exist");
        rustix::process::kill_process(pid, signal).expect("child must be there");
    }

    /// `kill -9`, and waits for the end.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// SIGTERM, and waits for the end.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(15);
        self.wait()
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("child must be ours") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the process does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether it ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("child must be ours")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The end of a log, for a test that failed.
pub fn print_log(who: &str, log: &Path) {
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let tail = &lines[lines.len().saturating_sub(60)..];
    eprintln!("--- {who} said last:\n{}", tail.join("\n"));
}
