//! What it costs to replicate objects (X3, X4): a control plane and the clients of its context stream in one process,
//! over loopback. Clients keep copies and compare every root, as evaluators do.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use assent_context::{
    Collection, CollectionSpec, Key,
    feed::Change,
    sink::{AccessReview, AccessVerdict, CollectionSink, ReadError},
};
use assent_core::Digest;
use assent_grpc::{
    ControlPlane, Discovery, Hub, Options, Services,
    auth::Open,
    context::{Assigned, Context, Limits, LiveReads},
    hub, serve,
};
use assent_proto::v1::{self, context_service_client::ContextServiceClient};
use serde_json::Value;
use tokio::{net::TcpListener, sync::mpsc, sync::watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use super::objects;
use crate::{
    machine,
    report::{Runs, Unit, ms, quantile, us},
    server::SERVER,
};

/// The field that policies read.
const FIELDS: [&str; 1] = ["subjects"];

/// A control plane with one collection.
struct Source {
    hub: Hub,
    spec: Arc<CollectionSpec>,
    address: SocketAddr,
    _stop: tokio_util::sync::DropGuard,
}

/// A client's copy, and what was sent to it.
struct Client {
    roots: watch::Receiver<Progress>,
    task: tokio::task::JoinHandle<anyhow::Result<Collection>>,
    stop: CancellationToken,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    root: Option<Digest>,
    bytes: usize,
}

struct NoReads;

#[tonic::async_trait]
impl LiveReads for NoReads {
    async fn get(&self, _: &CollectionSpec, _: &str, _: &str) -> Result<Option<Value>, ReadError> {
        Ok(None)
    }

    async fn review(&self, _: AccessReview) -> Result<AccessVerdict, ReadError> {
        Ok(AccessVerdict::default())
    }
}

/// X3: one object changes.
pub(super) async fn changes(
    runs: &mut Runs,
    sizes: &[usize],
    clients: usize,
    changes: usize,
) -> anyhow::Result<()> {
    for &size in sizes {
        let source = Source::start(size).await?;
        let clients = source.connect(clients, None).await?;
        source.settled(&clients).await?;
        let before: usize = clients.iter().map(|c| c.roots.borrow().bytes).sum();
        let mut times = Vec::with_capacity(changes);
        let cpu = machine::cpu(std::process::id())?;
        for number in 0..changes {
            let began = Instant::now();
            source.change(
                number * size / changes,
                "deployer",
                &format!("subject-{number}"),
            )?;
            source.settled(&clients).await?;
            times.push(began.elapsed());
        }
        let cpu = machine::cpu(std::process::id())? - cpu;
        let sent: usize = clients.iter().map(|c| c.roots.borrow().bytes).sum();
        // What no policy reads changes: nothing is sent.
        for number in 0..changes {
            source.change(
                number * size / changes,
                "another",
                &format!("subject-{number}"),
            )?;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let unread: usize = clients.iter().map(|c| c.roots.borrow().bytes).sum();
        let each = (changes * clients.len()) as f64;
        runs.row(
            format!("X3: 1 of {size} changes, {} clients", clients.len()),
            [
                (
                    "to the last one, p50",
                    Unit::Milliseconds,
                    ms(quantile(&mut times, 0.5)),
                ),
                (
                    "to the last one, p99",
                    Unit::Milliseconds,
                    ms(quantile(&mut times, 0.99)),
                ),
                (
                    "bytes per client",
                    Unit::Bytes,
                    (sent - before) as f64 / each,
                ),
                ("CPU per client", Unit::Microseconds, us(cpu) / each),
                (
                    "bytes, equal projection",
                    Unit::Bytes,
                    (unread - sent) as f64,
                ),
            ],
        );
        for client in clients {
            client.stop().await?;
        }
    }
    Ok(())
}

/// X4: every client connects again, and nothing has changed.
pub(super) async fn reconnects(runs: &mut Runs, size: usize, count: usize) -> anyhow::Result<()> {
    let source = Source::start(size).await?;
    let mut clients = source.connect(count, None).await?;
    source.settled(&clients).await?;
    let mut copies = Vec::new();
    for client in clients.drain(..) {
        copies.push(client.stop().await?);
    }
    let cpu = machine::cpu(std::process::id())?;
    let began = Instant::now();
    let clients = source.connect(count, Some(copies)).await?;
    source.settled(&clients).await?;
    let took = began.elapsed();
    let cpu = machine::cpu(std::process::id())? - cpu;
    let bytes: usize = clients.iter().map(|c| c.roots.borrow().bytes).sum();
    runs.row(
        format!("X4: {count} clients reconnect, {size} objects"),
        [
            ("object bytes", Unit::Bytes, bytes as f64),
            ("to the last one", Unit::Milliseconds, ms(took)),
            ("CPU", Unit::Milliseconds, ms(cpu)),
        ],
    );
    Ok(())
}

// === impl Source ===

impl Source {
    async fn start(size: usize) -> anyhow::Result<Self> {
        let (events, mut incoming) = mpsc::channel(1_024);
        tokio::spawn(async move { while incoming.recv().await.is_some() {} });
        let control_plane = ControlPlane {
            id: "bench".into(),
            ..ControlPlane::default()
        };
        let hub = Hub::new(hub::Config::default(), control_plane, events);
        hub.add_server(SERVER);
        hub.set_synced();
        let collection = objects::collection(size, &FIELDS)?;
        let spec = collection.spec().clone();
        let context = hub.context();
        context.open(&spec);
        let keys: BTreeSet<Key> = collection.iter().map(|o| o.key().clone()).collect();
        let all = collection.iter();
        let all: Vec<Change> = all
            .map(|o| (o.key().clone(), Some(o.json().to_vec())))
            .collect();
        context.complete(&spec.id(), &keys, all, "1");
        context.assign(
            SERVER,
            Assigned {
                collections: [(spec.id(), spec.clone())].into(),
                complete: true,
                limits: Limits::default(),
            },
        );
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let open = Arc::new(Open);
        let reads = Arc::new(NoReads);
        let services = Services::new(Discovery::new(hub.clone(), open.clone())).with(Context::new(
            hub.clone(),
            open,
            reads,
        ));
        let stop = CancellationToken::new();
        let server = serve(
            vec![listener],
            None,
            hub.clone(),
            services,
            Options::default(),
            stop.clone(),
        );
        tokio::spawn(server);
        Ok(Self {
            hub,
            spec,
            address,
            _stop: stop.drop_guard(),
        })
    }

    /// An object changes at the API server. Policies read its subject, and not its role.
    fn change(&self, number: usize, role: &str, subject: &str) -> anyhow::Result<()> {
        let mut object = objects::role_binding(number, role);
        object["subjects"][0]["name"] = subject.into();
        let projected = Collection::new(self.spec.clone()).project(object)?;
        let change = projected.context("the object must be in the collection")?;
        self.hub.context().apply(&self.spec.id(), vec![change], "2");
        Ok(())
    }

    async fn connect(
        &self,
        count: usize,
        copies: Option<Vec<Collection>>,
    ) -> anyhow::Result<Vec<Client>> {
        let mut copies = copies.unwrap_or_default().into_iter();
        let mut clients = Vec::with_capacity(count);
        for number in 0..count {
            let endpoint = Endpoint::from_shared(format!("http://{}", self.address))?;
            let copy = copies.next();
            let copy = copy.map_or_else(
                || (Collection::new(self.spec.clone()), false),
                |c| (c, true),
            );
            clients.push(Client::start(endpoint.connect().await?, number, copy).await?);
        }
        Ok(clients)
    }

    /// Waits until every client has what the source has.
    async fn settled(&self, clients: &[Client]) -> anyhow::Result<()> {
        let marks = self.hub.context().marks_of(SERVER);
        let root = marks.first().context("there must be a collection")?.1.root;
        for client in clients {
            let mut roots = client.roots.clone();
            let waited = roots.wait_for(|progress| progress.root == Some(root));
            let waited = tokio::time::timeout(Duration::from_secs(120), waited).await;
            waited
                .context("a client does not keep up")?
                .context("a client has failed")?;
        }
        Ok(())
    }
}

// === impl Client ===

impl Client {
    async fn start(
        channel: Channel,
        number: usize,
        (mut copy, holds): (Collection, bool),
    ) -> anyhow::Result<Self> {
        let (requests, receiver) = mpsc::channel(16);
        let held = v1::CollectionHeld {
            id: copy.spec().id().to_string(),
            root: copy.root().as_bytes().to_vec().into(),
            buckets: Vec::new(),
        };
        let first = v1::ContextRequest {
            node: Some(v1::Node {
                id: format!("client-{number}"),
                policy_server: SERVER.to_owned(),
                ..v1::Node::default()
            }),
            held: holds.then_some(held).into_iter().collect(),
            ..v1::ContextRequest::default()
        };
        requests.send(first).await?;
        let client = ContextServiceClient::new(channel);
        let mut client = client.max_decoding_message_size(8 << 20);
        let stream = client.stream_context(ReceiverStream::new(receiver)).await?;
        let (progress, roots) = watch::channel(Progress::default());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let mut stream = stream.into_inner();
        let task = tokio::spawn(async move {
            let mut bytes = 0;
            loop {
                let message = tokio::select! {
                    message = stream.message() => message?,
                    () = stopped.cancelled() => return Ok(copy),
                };
                let response = message.context("the stream has ended")?;
                for change in &response.changes {
                    bytes += change.object.len();
                    let key = Key::new(&change.namespace, &change.name);
                    copy.put(key.context("a key must be valid")?, &change.object)?;
                }
                let answer = v1::ContextRequest {
                    response_nonce: response.nonce,
                    ..v1::ContextRequest::default()
                };
                requests.send(answer).await?;
                for mark in &response.marks {
                    let root = copy.root();
                    anyhow::ensure!(root.as_bytes() == &mark.root[..], "a root does not match");
                    let root = Some(root);
                    progress.send_replace(Progress { root, bytes });
                }
            }
        });
        Ok(Self { roots, task, stop })
    }

    async fn stop(self) -> anyhow::Result<Collection> {
        self.stop.cancel();
        self.task.await?
    }
}
