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
    Digest, Millis, Policy, PolicyKey, Route, RouteState, Snapshot, Version,
    coalesce::Coalescer,
    fleet::{CountedReplicas, Fleet},
    policy::Content,
};
use assent_grpc::{
    ControlPlane, Discovery, Hub, Options, Services, StreamEvent,
    auth::Open,
    events::{self, BATCH},
    hub,
    modules::Modules,
    serve,
};
use clap::Args as ClapArgs;
use serde::{Deserialize, Serialize};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};
use tokio_util::sync::CancellationToken;

mod blobs;

use blobs::Blobs;

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
        /// Size of its module, which is new too; 0 leaves the module alone.
        module_bytes: usize,
        /// Replicas whose acknowledgement is waited for.
        acks: usize,
    },
    /// Change policies in turn, evenly over a time, published as a control plane publishes.
    Burst {
        /// How many changes.
        changes: u32,
        /// Over how long.
        over_ms: u64,
        /// Replicas whose acknowledgement of the last one is waited for.
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
    /// The publishing call alone; the longest if there were several.
    pub(crate) publish_us: u64,
    /// From publishing to the last acknowledgement; in a burst from the last change on.
    pub(crate) applied_us: u64,
    /// Snapshots that were published.
    pub(crate) published: u64,
}

/// The set that is served, and who has acknowledged it.
struct Desk {
    hub: Hub,
    acks: Arc<Acks>,
    blobs: Arc<Blobs>,
    set: Vec<Arc<Policy>>,
    version: Version,
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
    let (events, incoming) = mpsc::channel(16_384);
    let config = hub::Config {
        // Nothing may end by itself while it is measured.
        max_stream_age: Duration::from_secs(86_400),
        ..hub::Config::default()
    };
    let control_plane = ControlPlane {
        id: "bench".into(),
        ..ControlPlane::default()
    };
    let hub = Hub::new(config, control_plane, events);
    hub.add_server(SERVER);
    let mut desk = Desk::new(hub.clone(), args.policies);
    desk.publish();
    hub.set_synced();
    tokio::spawn(desk.acks.clone().fold(incoming));
    let listener = TcpListener::bind(args.listen).await?;
    say(&listener.local_addr()?.to_string())?;
    let open = Arc::new(Open);
    let modules = Modules::new(hub.clone(), open.clone(), desk.blobs.clone());
    let services = Services::new(Discovery::new(hub.clone(), open)).with(modules);
    tokio::spawn(serve(
        vec![listener],
        None,
        hub,
        services,
        options(),
        CancellationToken::new(),
    ));
    while let Some(line) = read_line().await? {
        let order: Order = serde_json::from_str(&line).context("failed to read an order")?;
        let done = desk.obey(order).await;
        say(&serde_json::to_string(&done)?)?;
    }
    Ok(())
}

/// All clients share a few connections.
fn options() -> Options {
    Options {
        max_concurrent_streams: 100_000,
        ..Options::default()
    }
}

// === impl Desk ===

impl Desk {
    fn new(hub: Hub, policies: usize) -> Self {
        let set: Vec<_> = (0..policies).map(|n| mk_policy(n, 1)).collect();
        Self {
            hub,
            acks: Arc::new(Acks::new()),
            blobs: Arc::default(),
            version: snapshot(&set).version(),
            set,
        }
    }

    async fn obey(&mut self, order: Order) -> Done {
        match order {
            Order::Change {
                policy,
                generation,
                module_bytes,
                acks,
            } => {
                self.set[policy] = match module_bytes {
                    0 => mk_policy(policy, generation),
                    size => {
                        let module = self.blobs.make(generation, size);
                        mk_policy_of(policy, generation, module, size as u64)
                    }
                };
                let (start, publish) = self.publish();
                self.settle(start, publish, 1, acks).await
            }
            Order::Burst {
                changes,
                over_ms,
                acks,
            } => self.burst(changes, over_ms, acks).await,
            Order::Settle { acks } => self.settle(Instant::now(), Duration::ZERO, 0, acks).await,
        }
    }

    /// Publishes the set: when, and how long the call took. Putting the set together is part
    /// of a change, but not of the call.
    fn publish(&mut self) -> (Instant, Duration) {
        let next = Arc::new(snapshot(&self.set));
        self.version = next.version();
        let start = Instant::now();
        self.hub.publish(SERVER, next, SystemTime::now());
        (start, start.elapsed())
    }

    async fn burst(&mut self, changes: u32, over_ms: u64, acks: usize) -> Done {
        let start = Instant::now();
        let now = || Millis::default() + start.elapsed();
        let mut coalescer = Coalescer::default();
        let (mut longest, mut published) = (Duration::ZERO, 0);
        let mut last = start;
        for n in 0..changes {
            let at = Duration::from_millis(over_ms * u64::from(n) / u64::from(changes.max(1)));
            tokio::time::sleep_until((start + at).into()).await;
            let policy = n as usize % self.set.len();
            // Generations that single changes do not reach.
            self.set[policy] = mk_policy(policy, 1_000_000 + i64::from(n));
            last = Instant::now();
            let at_once = coalescer.change(now());
            if at_once || coalescer.take_due(now()) {
                longest = longest.max(self.publish().1);
                published += 1;
            }
        }
        while let Some(due) = coalescer.deadline() {
            let wait = Duration::from_millis(due.0.saturating_sub(now().0));
            tokio::time::sleep(wait).await;
            if coalescer.take_due(now()) {
                longest = longest.max(self.publish().1);
                published += 1;
            }
        }
        self.settle(last, longest, published, acks).await
    }

    async fn settle(&self, start: Instant, publish: Duration, published: u64, acks: usize) -> Done {
        self.acks.wait(self.version, acks).await;
        Done {
            publish_us: us(publish),
            applied_us: us(start.elapsed()),
            published,
        }
    }
}

// === impl Acks ===

impl Acks {
    pub(crate) fn new() -> Self {
        Self {
            fleet: Mutex::new(Fleet::new(CountedReplicas::All, Duration::ZERO)),
            folded: watch::Sender::new(0),
            start: Instant::now(),
        }
    }

    /// Folds what streams say, as a control plane does.
    pub(crate) async fn fold(self: Arc<Self>, mut incoming: mpsc::Receiver<StreamEvent>) {
        let mut batch = Vec::with_capacity(BATCH);
        while incoming.recv_many(&mut batch, BATCH).await > 0 {
            events::gather(&mut incoming, &mut batch).await;
            let now = Millis::default() + self.start.elapsed();
            let mut fleet = self.fleet.lock().unwrap_or_else(PoisonError::into_inner);
            for event in batch.drain(..) {
                match event {
                    StreamEvent::Opened {
                        node,
                        identity,
                        stream,
                        ..
                    } => fleet.opened(now, node, identity, stream),
                    StreamEvent::Reported {
                        replica,
                        stream,
                        report,
                        ..
                    } => fleet.reported(now, &replica, stream, report),
                    StreamEvent::Closed {
                        replica, stream, ..
                    } => fleet.closed(now, &replica, stream),
                    StreamEvent::Heartbeat { .. } | StreamEvent::RetiredRequests { .. } => {}
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
    let module = Digest::of(format!("module {n}").as_bytes());
    mk_policy_of(n, generation, module, 65_536)
}

fn mk_policy_of(n: usize, generation: i64, module: Digest, size: u64) -> Arc<Policy> {
    let content = Content::new(
        module,
        "wapc",
        format!("{{\"generation\":{generation}}}")
            .into_bytes()
            .into(),
    );
    let key = PolicyKey::cluster(&format!("policy-{n}"));
    Arc::new(Policy::new(
        key,
        generation,
        "0123456789abcdef",
        content,
        size,
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
