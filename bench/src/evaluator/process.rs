//! Processes under test: this program again, with another command.

use std::{
    io::{BufRead as _, BufReader},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use super::{certificate::Certificate, plane::Plane};
use crate::machine;

/// A running one; it ends when this is dropped.
pub(crate) struct Process {
    child: Child,
    /// Where it serves.
    pub(crate) address: SocketAddr,
    /// From its start until it said that it was ready.
    pub(crate) to_ready: Duration,
}

/// Programs listen within a second, or something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

// === impl Process ===

impl Process {
    /// An evaluator that follows `plane`; ready with all that is published.
    pub(crate) fn evaluator(
        plane: &Plane,
        certificate: &Certificate,
        id: &str,
    ) -> anyhow::Result<Self> {
        let mut command = command("evaluator-under-test", certificate)?;
        command.args(["--discovery", &plane.url(), "--id", id]);
        Self::start(command).context("failed to start the evaluator")
    }

    /// A server that answers every request with its own body.
    pub(crate) fn echo(certificate: &Certificate) -> anyhow::Result<Self> {
        let command = command("evaluator-echo", certificate)?;
        Self::start(command).context("failed to start the echo server")
    }

    /// The same, calling a policy before each answer.
    pub(crate) fn echo_with(
        certificate: &Certificate,
        policies: &Path,
        label: &str,
    ) -> anyhow::Result<Self> {
        let mut command = command("evaluator-echo", certificate)?;
        command.args(["--call", label, "--policies"]).arg(policies);
        Self::start(command).context("failed to start the echo server with a policy")
    }

    /// A program of others, which listens where `--addr` tells.
    pub(crate) fn listening(mut command: Command) -> anyhow::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        command.args(["--addr", &address.to_string()]);
        let start = Instant::now();
        let mut this = Self {
            child: command.stdin(Stdio::null()).spawn()?,
            address,
            to_ready: Duration::ZERO,
        };
        while TcpStream::connect(address).is_err() {
            anyhow::ensure!(this.child.try_wait()?.is_none(), "it ended");
            anyhow::ensure!(start.elapsed() < PATIENCE, "it does not listen");
            tokio::task::block_in_place(|| thread::sleep(Duration::from_millis(20)));
        }
        this.to_ready = start.elapsed();
        Ok(this)
    }

    /// Waits for the line with its address. Other tasks run on other threads meanwhile.
    fn start(mut command: Command) -> anyhow::Result<Self> {
        let start = Instant::now();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child
            .stdout
            .take()
            .context("it must have a standard output")?;
        let mut line = String::new();
        let read = tokio::task::block_in_place(|| BufReader::new(out).read_line(&mut line));
        let to_ready = start.elapsed();
        let mut this = Self {
            child,
            address: SocketAddr::from(([0, 0, 0, 0], 0)),
            to_ready,
        };
        read?;
        this.address = line
            .trim()
            .parse()
            .context("it ended before it was ready")?;
        Ok(this)
    }

    /// Processor time that it has used.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        machine::cpu(self.child.id())
    }

    /// Memory now and at most.
    pub(crate) fn memory(&self) -> anyhow::Result<(u64, u64)> {
        machine::memory(self.child.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(name: &str, certificate: &Certificate) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(name).arg("--cert").arg(certificate.chain());
    command.arg("--key").arg(certificate.key());
    Ok(command)
}
