//! The server under test, in a process of its own so that its memory and processor time are
//! its own too. It is told what to do by lines on standard input.

use std::{
    io::{BufRead as _, Write as _},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context as _;
use assent_core::{
    Digest, Millis, Mode, Policy, PolicyKey, Route, RouteState, Snapshot, Version,
    fleet::{Counting, Fleet},
    policy::{Content, Limits},
};
use assent_grpc::{
    ControlPlane, Discovery, Hub, Notice, Options, Services, auth::Open, hub, serve,
};
use clap::Args as ClapArgs;
use serde::{Deserialize, Serialize};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};
use tokio_util::sync::CancellationToken;

/// The one PolicyServer.
pub(crate) const SERVER: &str = "default";

/// What the server serves.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Args {
    /// Policies in the snapshot
    #[arg(long)]
    pub(crate) policies: usize,
    /// Address to listen on; port 0 chooses one
    #[arg(long, default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
}

/// What the server is told.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Change one policy and wait for the last acknowledgement of those that answer.
    Change {
        /// Which one.
        policy: usize,
        /// Its new generation.
        generation: i64,
        /// Replicas whose acknowledgement is waited for.
        acks: usize,
    },
    /// Wait until so many replicas have acknowledged what is published.
    Settle {
        /// How many.
        acks: usize,
    },
}

/// What the server answers.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    /// The publishing call alone.
    pub(crate) publish_us: u64,
    /// From publishing to the last acknowledgement.
    pub(crate) applied_us: u64,
}

/// Replicas by what they acknowledged last.
#[derive(Debug)]
pub(crate) struct Acks {
    fleet: Mutex<Fleet>,
    folded: watch::Sender<u64>,
    start: Instant,
}

/// Serves until standard input ends.
#[tokio::main]
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let (notices, incoming) = mpsc::channel(16_384);
    let config = hub::Config {
        // Nothing may end by itself while it is measured.
        max_stream_age: Duration::from_secs(86_400),
        ..hub::Config::default()
    };
    let control_plane = ControlPlane {
        id: "bench".into(),
        ..ControlPlane::default()
    };
    let hub = Hub::new(config, control_plane, notices);
    hub.add_server(SERVER);
    let mut set = (0..args.policies)
        .map(|n| mk_policy(n, 1))
        .collect::<Vec<_>>();
    hub.publish(SERVER, Arc::new(snapshot(&set)), SystemTime::now());
    hub.set_synced();
    let acks = Arc::new(Acks::new());
    tokio::spawn(acks.clone().fold(incoming));
    let listener = TcpListener::bind(args.listen).await?;
    say(&listener.local_addr()?.to_string())?;
    let services = Services::new(Discovery::new(hub.clone(), Arc::new(Open)));
    let stop = CancellationToken::new();
    tokio::spawn(serve(
        vec![listener],
        None,
        hub.clone(),
        services,
        Options::default(),
        stop,
    ));
    let mut version = snapshot(&set).version();
    while let Some(line) = read_line().await? {
        let order: Order = serde_json::from_str(&line).context("failed to read an order")?;
        let done = match order {
            Order::Change {
                policy,
                generation,
                acks: wanted,
            } => {
                set[policy] = mk_policy(policy, generation);
                // Putting the set together is part of a change, the publishing call is not.
                let next = Arc::new(snapshot(&set));
                version = next.version();
                let start = Instant::now();
                hub.publish(SERVER, next, SystemTime::now());
                let publish = start.elapsed();
                acks.wait(version, wanted).await;
                Done {
                    publish_us: us(publish),
                    applied_us: us(start.elapsed()),
                }
            }
            Order::Settle { acks: wanted } => {
                let start = Instant::now();
                acks.wait(version, wanted).await;
                Done {
                    publish_us: 0,
                    applied_us: us(start.elapsed()),
                }
            }
        };
        say(&serde_json::to_string(&done)?)?;
    }
    Ok(())
}

// === impl Acks ===

impl Acks {
    pub(crate) fn new() -> Self {
        Self {
            fleet: Mutex::new(Fleet::new(Counting::Everyone, Duration::ZERO)),
            folded: watch::Sender::new(0),
            start: Instant::now(),
        }
    }

    /// Folds what streams say, as a control plane does.
    pub(crate) async fn fold(self: Arc<Self>, mut incoming: mpsc::Receiver<Notice>) {
        let mut batch = Vec::with_capacity(1_024);
        while incoming.recv_many(&mut batch, 1_024).await > 0 {
            let now = Millis::default() + self.start.elapsed();
            let mut fleet = self.fleet.lock().unwrap_or_else(PoisonError::into_inner);
            for notice in batch.drain(..) {
                match notice {
                    Notice::Opened {
                        node,
                        identity,
                        stream,
                        ..
                    } => fleet.opened(now, node, identity, stream),
                    Notice::Reported {
                        replica,
                        stream,
                        report,
                        ..
                    } => fleet.reported(now, &replica, stream, report),
                    Notice::Closed {
                        replica, stream, ..
                    } => fleet.closed(now, &replica, stream),
                    Notice::Heard { .. } | Notice::RetiredRequests { .. } => {}
                }
            }
            fleet.tick(now);
            drop(fleet);
            self.folded.send_modify(|n| *n += 1);
        }
    }

    /// Until so many replicas have acknowledged `version`.
    pub(crate) async fn wait(&self, version: Version, wanted: usize) {
        let mut folded = self.folded.subscribe();
        while self.acked(version) < wanted {
            if folded.changed().await.is_err() {
                return;
            }
        }
    }

    fn acked(&self, version: Version) -> usize {
        let fleet = self.fleet.lock().unwrap_or_else(PoisonError::into_inner);
        fleet.acked(version)
    }
}

/// A policy of a usual size: about 300 bytes on the wire.
pub(crate) fn mk_policy(n: usize, generation: i64) -> Arc<Policy> {
    let content = Content {
        module_digest: Digest::of(format!("module {n}").as_bytes()),
        abi: "wapc".into(),
        settings_json: format!("{{\"generation\":{generation}}}")
            .into_bytes()
            .into(),
        mode: Mode::Protect,
        mutating: false,
        limits: Limits::default(),
        context_resources: Vec::new(),
        host_capabilities: Vec::new(),
        message: String::new(),
        entrypoint: String::new(),
    };
    let key = PolicyKey::cluster(&format!("policy-{n}"));
    Arc::new(Policy::new(
        key,
        generation,
        "0123456789abcdef",
        content,
        65_536,
    ))
}

/// A snapshot in which every policy is active.
pub(crate) fn snapshot(set: &[Arc<Policy>]) -> Snapshot {
    let routes = set
        .iter()
        .map(|p| Arc::new(Route::of(&p.revision, RouteState::Active)));
    Snapshot::new(set.iter().cloned(), routes)
}

/// The next line of standard input; none at its end.
pub(crate) async fn read_line() -> anyhow::Result<Option<String>> {
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line)?;
        Ok::<_, std::io::Error>((read > 0).then_some(line))
    });
    Ok(line.await??)
}

/// Tells the parent process.
pub(crate) fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
