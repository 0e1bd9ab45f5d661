//! `assent replicas`: shows what each evaluator serves.

use assent_proto::v1::{ClientStatusRequest, ClientStatusResponse, ReplicaState};
use clap::ValueEnum;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::{
    age,
    client::{self, Answer, ServerArgs},
    exit::Exit,
    follow::{Follow, Shown},
    out::{self, Closed, OutputArgs},
    report::Replica,
    status::Server,
    table::Table,
};

/// Shows the evaluators of PolicyServers and what they serve.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only replicas in this state; can be repeated
    #[arg(long, value_name = "STATE")]
    state: Vec<State>,

    /// Print a line for each replica, and for each change until interrupted
    #[arg(short, long)]
    watch: bool,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent replicas
  assent replicas --state rejected --state behind
  assent replicas --policy-server tenants --watch
  assent replicas -o json

Exit codes: 0 = every replica shown is current, 1 = some are not, 2 = error.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    /// Serves the current version completely
    Current,
    /// Has not acknowledged the current version yet
    Behind,
    /// Rejected the current version or a part of it
    Rejected,
    /// Has no open stream
    Disconnected,
}

/// All replicas, as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    /// Absent if there are several PolicyServers.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    policy_servers: Vec<Server>,
    replicas: Vec<Located>,
}

/// One replica and its PolicyServer, as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Located {
    policy_server: String,
    #[serde(flatten)]
    replica: Replica,
}

/// Enough digits to tell versions apart.
const SHORT_VERSION: usize = 12;

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            state,
            watch,
            output,
            server,
        } = self;
        let states: Vec<i32> = state
            .into_iter()
            .map(|state| state.to_proto().into())
            .collect();
        client::block_on(async {
            if watch {
                return follow(&server, states, output).await;
            }
            let client = server.connect().await?;
            let mut answers = Vec::new();
            for server in client.servers().await? {
                answers.push(client.everything(&server, "", states.clone()).await?);
            }
            list(&answers, output)
        })
    }
}

fn list(answers: &[Answer], output: OutputArgs) -> anyhow::Result<Exit> {
    let only = match answers {
        [only] => Some(only),
        _ => None,
    };
    let mut replicas = answers.iter().flat_map(|answer| &answer.replicas);
    let all_current = replicas.clone().all(|r| r.state() == ReplicaState::Current);
    if output.is_json() {
        let located = answers.iter().flat_map(|answer| {
            answer.replicas.iter().map(|replica| Located {
                policy_server: answer.policy_server.clone(),
                replica: Replica::from(replica),
            })
        });
        out::json(&List {
            policy_server: only.map(|answer| answer.policy_server.clone()),
            version: only.map(|answer| answer.version.clone()),
            policy_servers: answers.iter().map(Server::from).collect(),
            replicas: located.collect(),
        })?;
    } else if replicas.next().is_none() {
        out::note("no replicas found");
    } else {
        out::print(table(answers, only.is_none()))?;
    }
    Ok(Exit::yes_if(all_current))
}

async fn follow(args: &ServerArgs, states: Vec<i32>, output: OutputArgs) -> anyhow::Result<Exit> {
    let mut shown = Shown::default();
    let changed = |server: &str, answer: ClientStatusResponse| -> Result<(), Closed> {
        let replicas: Vec<Replica> = answer.replicas.iter().map(Replica::from).collect();
        let rows = replicas.iter().map(|r| (r.name.clone(), line(server, r)));
        let (changed, gone) = shown.update(server, rows);
        for replica in replicas.into_iter().filter(|r| changed.contains(&r.name)) {
            if !output.is_json() {
                out::endless_line(line(server, &replica))?;
                continue;
            }
            let policy_server = server.to_owned();
            out::endless_line(json!(Located {
                policy_server,
                replica,
            }))?;
        }
        for name in gone {
            match output.is_json() {
                true => out::endless_line(
                    json!({"policyServer": server, "name": name, "deleted": true}),
                )?,
                false => out::endless_line(format_args!("{name} server={server} gone"))?,
            }
        }
        Ok(())
    };
    let make = |server: &str| ClientStatusRequest {
        states: states.clone(),
        // No number: as many as fit.
        ..client::request(server, 0)
    };
    let follow = Follow {
        args,
        make,
        changed,
    };
    follow.run().await?;
    Ok(Exit::Yes)
}

/// A replica in one line.
fn line(server: &str, replica: &Replica) -> String {
    let mut line = format!(
        "{} server={server} state={} version={}",
        replica.name,
        replica.state,
        short(&replica.version_acked)
    );
    if let Some(rejection) = replica.rejected.first() {
        line.push_str(&format!(" refused={:?}", out::clean(&rejection.message)));
    }
    line
}

fn short(version: &str) -> String {
    version.chars().take(SHORT_VERSION).collect()
}

// === impl State ===

impl State {
    fn to_proto(self) -> ReplicaState {
        match self {
            Self::Current => ReplicaState::Current,
            Self::Behind => ReplicaState::Behind,
            Self::Rejected => ReplicaState::Rejected,
            Self::Disconnected => ReplicaState::Disconnected,
        }
    }
}

/// One table of all replicas; `with_server` if they belong to several PolicyServers.
fn table(answers: &[Answer], with_server: bool) -> Table {
    let now = Timestamp::now();
    let header = [
        "REPLICA",
        "STATE",
        "VERSION",
        "CONNECTED",
        "SEEN",
        "ENDPOINT",
        "REFUSED",
    ];
    let server = with_server.then_some("SERVER");
    let mut table = Table::new(server.into_iter().chain(header));
    for answer in answers {
        for status in &answer.replicas {
            let server = with_server.then(|| answer.policy_server.clone());
            let replica = Replica::from(status);
            let refused = refused(&replica);
            let cells = [
                replica.name,
                replica.state.to_owned(),
                short(&replica.version_acked),
                age::since(status.connected_since.as_ref(), now),
                age::since(status.last_seen.as_ref(), now),
                replica.endpoint,
                refused,
            ];
            table.push(server.into_iter().chain(cells));
        }
    }
    table
}

/// The first thing that a replica refused, and how many others there are.
fn refused(replica: &Replica) -> String {
    let first = replica.rejected.first();
    let refused = first.map(|rejection| rejection.message.clone());
    let refused = refused.unwrap_or_default();
    match replica.rejected.len() {
        0 | 1 => refused,
        count => format!("{refused} (and {} more)", count - 1),
    }
}
