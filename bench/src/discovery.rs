//! Discovery under load: a server process, and thousands of streams from this one.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args as ClapArgs;

use crate::{
    load::{Load, Manner},
    machine,
    report::{self, Report},
    server::{Done, Order},
};

/// What to measure.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Args {
    /// Numbers of streams
    #[arg(long, value_delimiter = ',', default_value = "100,1000,5000")]
    streams: Vec<usize>,
    /// Numbers of policies
    #[arg(long, value_delimiter = ',', default_value = "10,1000")]
    policies: Vec<usize>,
    /// Changes of one policy that are timed
    #[arg(long, default_value_t = 20)]
    changes: usize,
    /// Pause between two changes, in milliseconds
    #[arg(long, default_value_t = 200)]
    pause: u64,
    /// Where the JSON goes
    #[arg(long, default_value = "bench-discovery.json")]
    json: PathBuf,
}

/// The server process.
struct Server {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    address: SocketAddr,
}

/// Runs every combination.
#[tokio::main]
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let parameters = format!(
        "streams {:?} x policies {:?}, {} changes {} ms apart, one connection per stream",
        args.streams, args.policies, args.changes, args.pause
    );
    let mut table = Report::new("discovery", parameters);
    for policies in &args.policies {
        for streams in &args.streams {
            combination(&args, *streams, *policies, &mut table).await?;
        }
    }
    table.finish(&args.json)
}

async fn combination(
    args: &Args,
    streams: usize,
    policies: usize,
    table: &mut Report,
) -> anyhow::Result<()> {
    let name = format!("{streams} x {policies}");
    let mut server = Server::start(policies, None)?;
    let idle = server.memory()?;
    let start = Instant::now();
    let load = Load::open(server.address, streams, |_| Manner::Honest).await?;
    server.order(Order::Settle { acks: streams })?;
    let synced = start.elapsed();
    let (now, peak) = server.memory_now()?;
    let per_stream = now.saturating_sub(idle) / streams.max(1) as u64;
    table.row(
        format!("{name}: connect and sync"),
        vec![
            ("all", report::millis(synced)),
            (
                "per idle stream",
                format!("{:.1} KB", per_stream as f64 / 1_024.0),
            ),
            ("peak", format!("{:.0} MB", peak as f64 / 1e6)),
        ],
    );
    changes(
        args,
        &mut server,
        streams,
        &format!("{name}: one change"),
        table,
    )
    .await?;
    restart(server, &load, streams, policies, &name, table).await?;
    drop(load);
    for (what, share, manner) in [
        ("1 % reject", 100, Manner::Rejecting),
        ("5 % do not read", 20, Manner::Stuck),
    ] {
        let mut server = Server::start(policies, None)?;
        let bad = move |n: usize| {
            if n.is_multiple_of(share) {
                manner
            } else {
                Manner::Honest
            }
        };
        let load = Load::open(server.address, streams, bad).await?;
        let honest = streams - streams.div_ceil(share);
        server.order(Order::Settle { acks: streams })?;
        let before = load.seen.rejected.load(Ordering::Relaxed);
        changes(args, &mut server, honest, &format!("{name}: {what}"), table).await?;
        if manner == Manner::Rejecting {
            let sends = load.seen.rejected.load(Ordering::Relaxed) - before;
            let versions = (args.changes * (streams - honest)) as u64;
            let per_version = sends as f64 / versions.max(1) as f64;
            table.row(
                format!("{name}: sends per rejected version"),
                vec![("sends", format!("{per_version:.2}"))],
            );
        }
    }
    Ok(())
}

/// Times single changes until the last of `acks` replicas has answered.
async fn changes(
    args: &Args,
    server: &mut Server,
    acks: usize,
    name: &str,
    table: &mut Report,
) -> anyhow::Result<()> {
    let (mut applied, mut publish) = (Vec::new(), Vec::new());
    let cpu = server.cpu()?;
    for n in 0..args.changes {
        tokio::time::sleep(Duration::from_millis(args.pause)).await;
        let generation = 2 + i64::try_from(n)?;
        let done = server.order(Order::Change {
            policy: 0,
            generation,
            acks,
        })?;
        applied.push(Duration::from_micros(done.applied_us));
        publish.push(Duration::from_micros(done.publish_us));
    }
    let cpu = server.cpu()?.saturating_sub(cpu);
    let per_change = cpu / u32::try_from(args.changes.max(1))?;
    let mut values = report::spread(&mut applied);
    publish.sort_unstable();
    let publish = publish.last().copied().unwrap_or_default();
    values.push(("publish call max", report::micros(publish)));
    values.push((
        "server CPU per stream",
        report::micros(per_change / u32::try_from(acks.max(1))?),
    ));
    table.row(name, values);
    Ok(())
}

/// Restarts the server with equal content under everyone's feet.
async fn restart(
    mut server: Server,
    load: &Load,
    streams: usize,
    policies: usize,
    name: &str,
    table: &mut Report,
) -> anyhow::Result<()> {
    let address = server.address;
    // Back to what a fresh server has, so that the content is equal.
    server.order(Order::Change {
        policy: 0,
        generation: 1,
        acks: streams,
    })?;
    let before = load.seen.resources.load(Ordering::Relaxed);
    drop(server);
    let mut server = Server::start(policies, Some(address))?;
    let start = Instant::now();
    server.order(Order::Settle { acks: streams })?;
    let took = start.elapsed();
    let resources = load.seen.resources.load(Ordering::Relaxed) - before;
    let (_, peak) = server.memory_now()?;
    table.row(
        format!("{name}: restart, equal content"),
        vec![
            ("all confirmed", report::millis(took)),
            ("resources sent", resources.to_string()),
            ("peak", format!("{:.0} MB", peak as f64 / 1e6)),
        ],
    );
    Ok(())
}

// === impl Server ===

impl Server {
    fn start(policies: usize, listen: Option<SocketAddr>) -> anyhow::Result<Self> {
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
    fn order(&mut self, order: Order) -> anyhow::Result<Done> {
        tokio::task::block_in_place(|| {
            writeln!(self.orders, "{}", serde_json::to_string(&order)?)?;
            let mut line = String::new();
            self.answers.read_line(&mut line)?;
            serde_json::from_str(&line).context("the server ended")
        })
    }

    fn cpu(&self) -> anyhow::Result<Duration> {
        machine::cpu(self.child.id())
    }

    fn memory(&self) -> anyhow::Result<u64> {
        Ok(self.memory_now()?.0)
    }

    fn memory_now(&self) -> anyhow::Result<(u64, u64)> {
        machine::memory(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
