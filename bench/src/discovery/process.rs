//! The server under test as a child process.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;

use crate::{
    machine,
    server::{Done, Order},
};

/// The server process; it ends with this.
pub(super) struct Server {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Where it listens.
    pub(super) address: SocketAddr,
}

// === impl Server ===

impl Server {
    pub(super) fn start(policies: usize, listen: Option<SocketAddr>) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--policies", &policies.to_string()]);
        if let Some(listen) = listen {
            command.args(["--listen", &listen.to_string()]);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child
            .stdin
            .take()
            .context("the server must have a standard input")?;
        let answers = child
            .stdout
            .take()
            .context("the server must have a standard output")?;
        let mut answers = BufReader::new(answers);
        let mut line = String::new();
        answers.read_line(&mut line)?;
        let address = line.trim().parse().context("the server did not start")?;
        Ok(Self {
            child,
            orders,
            answers,
            address,
        })
    }

    /// Gives an order and waits until it is done. The load runs on other threads meanwhile.
    pub(super) fn order(&mut self, order: Order) -> anyhow::Result<Done> {
        tokio::task::block_in_place(|| {
            writeln!(self.orders, "{}", serde_json::to_string(&order)?)?;
            let mut line = String::new();
            self.answers.read_line(&mut line)?;
            serde_json::from_str(&line).context("the server ended")
        })
    }

    pub(super) fn cpu(&self) -> anyhow::Result<Duration> {
        machine::cpu(self.child.id())
    }

    /// Memory that the process has, and what it had at most.
    pub(super) fn memory(&self) -> anyhow::Result<(u64, u64)> {
        machine::memory(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
