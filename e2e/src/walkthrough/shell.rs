//! One shell that runs commands one after the other, as a person's does.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

/// A running bash. What it started, in the background too, ends with it.
pub struct Shell {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    commands: usize,
}

/// What a command did.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What it wrote, errors included.
    pub output: Vec<String>,
    /// Its exit status.
    pub status: i32,
}

/// In the line after a command's output, followed by its number and its exit status.
const MARK: &str = "--- end of command";

// === impl Shell ===

impl Shell {
    /// Starts bash, with the directory and the environment that `bash` has.
    pub fn start(bash: &mut Command) -> Self {
        let mut child = bash
            .args(["--noprofile", "--norc"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("bash must start");
        let mut input = child.stdin.take().expect("standard input must be piped");
        let output = child.stdout.take().expect("standard output must be piped");
        writeln!(input, "exec 2>&1").expect("bash must read");
        Self {
            child,
            input,
            lines: read(output),
            commands: 0,
        }
    }

    /// Runs a command to its end. An error is what it wrote until it was given up.
    pub fn run(&mut self, command: &str, patience: Duration) -> Result<Outcome, String> {
        self.commands += 1;
        let mark = format!("{MARK} {}", self.commands);
        let quoted = command.replace('\'', r"'\''");
        // In the same shell, so that variables stay; it must not read the next command.
        let script = format!("eval '{quoted}' </dev/null\nprintf '\\n%s %s\\n' '{mark}' \"$?\"\n");
        // A shell that has ended produces no output.
        let _ = self.input.write_all(script.as_bytes());
        let deadline = Instant::now() + patience;
        let mut output = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).map_err(|error| {
                let why = match error {
                    RecvTimeoutError::Timeout => "it does not end",
                    RecvTimeoutError::Disconnected => "the shell has ended",
                };
                format!("{why}; so far it wrote:\n{}", output.join("\n"))
            })?;
            if let Some(status) = line.strip_prefix(&mark) {
                return Ok(Outcome::new(output, status));
            }
            output.push(line);
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

// === impl Outcome ===

impl Outcome {
    fn new(mut output: Vec<String>, status: &str) -> Self {
        // The mark begins a new line: an empty one if the output ended with a newline.
        output.pop_if(|last| last.is_empty());
        Self {
            output,
            status: status.trim().parse().unwrap_or(-1),
        }
    }
}

/// Lines as they come; the thread ends when nobody has the other end any more.
fn read(output: ChildStdout) -> Receiver<String> {
    let (lines, received) = mpsc::channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line);
            let text = text.strip_suffix('\n').unwrap_or(&text);
            if lines.send(text.to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    received
}
