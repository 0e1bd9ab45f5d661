//! `assent context`: shows the objects that policies read, and which evaluators have them.

use assent_proto::v1::{CollectionMark, CollectionStatus, ReplicaState, ReplicaStatus, SyncState};
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    age::{self, rfc3339},
    client::{self, Answer, ServerArgs},
    exit::Exit,
    out::{self, OutputArgs},
    progress,
    table::Table,
};

/// Shows the Kubernetes objects that policies read, and which evaluators have them.
///
/// The row of a collection has what the control plane follows; the rows below it have what each evaluator acknowledged last.
/// An evaluator whose state is `behind` has another content than the control plane.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent context
  assent context --policy-server team-a -o json

Exit codes: 0 = everything is synced and every connected evaluator has it, 1 = not everything, 2 = it could not be asked.";

/// All collections, as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    policy_servers: Vec<Server>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Server {
    policy_server: String,
    collections: Vec<Collection>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Collection {
    id: String,
    api_version: String,
    kind: String,
    fields: Vec<String>,
    namespaces: Vec<String>,
    label_selector: String,
    #[serde(flatten)]
    held: Held,
    replicas: Vec<Replica>,
}

/// What somebody has of a collection.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Held {
    state: &'static str,
    detail: String,
    objects: u64,
    bytes: u64,
    observed_at: Option<String>,
    /// The digest of all objects: equal ones have equal content.
    root: String,
    #[serde(skip)]
    seen: Option<prost_types::Timestamp>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Replica {
    name: String,
    /// Whether it has what the control plane has.
    current: bool,
    #[serde(flatten)]
    held: Held,
}

/// Enough digits to tell collections apart.
const SHORT_ID: usize = 12;

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self { output, server } = self;
        let answers = client::block_on(async {
            let client = server.connect().await?;
            let mut answers = Vec::new();
            for server in client.servers().await? {
                answers.push(client.everything(&server, "", Vec::new()).await?);
            }
            Ok(answers)
        })?;
        let servers: Vec<Server> = answers.iter().map(Server::new).collect();
        let mut collections = servers.iter().flat_map(|server| &server.collections);
        let is_fine = collections.all(Collection::is_fine);
        if output.is_json() {
            out::json(&List {
                policy_servers: servers,
            })?;
        } else if servers.iter().all(|server| server.collections.is_empty()) {
            out::note("no policy reads other objects");
        } else {
            out::print(table(&servers))?;
        }
        Ok(Exit::yes_if(is_fine))
    }
}

// === impl Server ===

impl Server {
    fn new(answer: &Answer) -> Self {
        let connected = answer.replicas.iter();
        let connected = connected.filter(|r| r.state() != ReplicaState::Disconnected);
        let connected: Vec<&ReplicaStatus> = connected.collect();
        let collections = answer.collections.iter();
        let collections = collections.map(|one| Collection::new(one, &connected));
        Self {
            policy_server: answer.policy_server.clone(),
            collections: collections.collect(),
        }
    }
}

// === impl Collection ===

impl Collection {
    fn new(status: &CollectionStatus, replicas: &[&ReplicaStatus]) -> Self {
        let spec = status.collection.clone().unwrap_or_default();
        let mark = status.mark.clone().unwrap_or_default();
        let replicas = replicas.iter();
        let replicas = replicas.map(|replica| Replica::new(replica, &spec.id, &mark));
        Self {
            replicas: replicas.collect(),
            id: spec.id,
            api_version: spec.api_version,
            kind: spec.kind,
            fields: spec.fields,
            namespaces: spec.namespaces,
            label_selector: spec.label_selector,
            held: Held::new(&mark, state(mark.state())),
        }
    }

    fn is_fine(&self) -> bool {
        self.held.state == "Synced" && self.replicas.iter().all(|replica| replica.current)
    }
}

// === impl Replica ===

impl Replica {
    fn new(status: &ReplicaStatus, collection: &str, source: &CollectionMark) -> Self {
        let name = status.node.as_ref().map(|node| node.id.clone());
        let mut marks = status.context.iter();
        let mark = marks.find(|mark| mark.collection == collection);
        let current = mark.is_some_and(|mark| mark.root == source.root);
        let held = match mark {
            None => Held::new(&CollectionMark::default(), "missing"),
            Some(mark) if !current => Held::new(mark, "behind"),
            Some(mark) => Held::new(mark, state(mark.state())),
        };
        Self {
            name: name.unwrap_or_default(),
            current,
            held,
        }
    }
}

// === impl Held ===

impl Held {
    fn new(mark: &CollectionMark, state: &'static str) -> Self {
        Self {
            state,
            detail: mark.detail.clone(),
            objects: mark.objects,
            bytes: mark.bytes,
            observed_at: rfc3339(mark.observed_at.as_ref()),
            root: mark.root.iter().map(|byte| format!("{byte:02x}")).collect(),
            seen: mark.observed_at,
        }
    }
}

/// As in the status of a PolicyServer.
fn state(state: SyncState) -> &'static str {
    match state {
        SyncState::Unspecified => "Unknown",
        SyncState::Syncing => "Syncing",
        SyncState::Synced => "Synced",
        SyncState::Stale => "Stale",
        SyncState::Forbidden => "Forbidden",
        SyncState::Absent => "Absent",
    }
}

fn table(servers: &[Server]) -> Table {
    let now = Timestamp::now();
    let header = [
        "POLICYSERVER",
        "COLLECTION",
        "HOLDER",
        "STATE",
        "OBJECTS",
        "BYTES",
        "AGE",
        "DETAIL",
    ];
    let mut table = Table::new(header);
    for server in servers {
        for one in &server.collections {
            let id: String = one.id.chars().take(SHORT_ID).collect();
            let name = format!("{} ({}) {id}", one.kind, one.api_version);
            let first = [server.policy_server.clone(), name];
            table.push(row(first, "control plane", &one.held, now));
            for replica in &one.replicas {
                table.push(row(Default::default(), &replica.name, &replica.held, now));
            }
        }
    }
    table
}

fn row([server, name]: [String; 2], holder: &str, held: &Held, now: Timestamp) -> [String; 8] {
    [
        server,
        name,
        holder.to_owned(),
        held.state.to_owned(),
        held.objects.to_string(),
        progress::size(held.bytes),
        age::since(held.seen.as_ref(), now),
        held.detail.clone(),
    ]
}
