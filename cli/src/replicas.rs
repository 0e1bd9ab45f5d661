//! `assent replicas`: shows what each evaluator serves.

use assent_proto::v1::{ReplicaState, ReplicaStatus};
use clap::ValueEnum;
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    age,
    client::{self, ServerArgs},
    exit::Exit,
    out::{self, OutputArgs},
    report::Replica,
    table::Table,
};

/// Shows the evaluators of a PolicyServer and what they serve.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only replicas in this state; can be repeated
    #[arg(long, value_name = "STATE")]
    state: Vec<State>,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent replicas
  assent replicas --state rejected --state behind
  assent replicas -o json

Exit codes: 0 = every replica shown is current, 1 = some are not, 2 = it could not be asked.";

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
    policy_server: String,
    version: String,
    replicas: Vec<Replica>,
}

/// Enough digits to tell versions apart.
const SHORT_VERSION: usize = 12;

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            state,
            output,
            server,
        } = self;
        let states = state
            .into_iter()
            .map(|state| state.to_proto().into())
            .collect();
        let answer = client::block_on(async {
            let client = server.connect().await?;
            client.everything("", states).await
        })?;
        let all_current = answer
            .replicas
            .iter()
            .all(|r| r.state() == ReplicaState::Current);
        if output.is_json() {
            out::json(&List {
                policy_server: server.policy_server,
                version: answer.version,
                replicas: answer.replicas.iter().map(Replica::from).collect(),
            })?;
        } else if answer.replicas.is_empty() {
            out::note("no replicas found");
        } else {
            out::print(table(&answer.replicas))?;
        }
        Ok(Exit::yes_if(all_current))
    }
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

fn table(replicas: &[ReplicaStatus]) -> Table {
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
    let mut table = Table::new(header);
    for status in replicas {
        let replica = Replica::from(status);
        let version: String = replica.version_acked.chars().take(SHORT_VERSION).collect();
        let first = replica.rejected.first();
        let refused = first
            .map(|rejection| rejection.message.clone())
            .unwrap_or_default();
        let more = replica.rejected.len().saturating_sub(1);
        table.push([
            replica.name,
            replica.state.to_owned(),
            version,
            age::since(status.connected_since.as_ref(), now),
            age::since(status.last_seen.as_ref(), now),
            replica.endpoint,
            if more > 0 {
                format!("{refused} (and {more} more)")
            } else {
                refused
            },
        ]);
    }
    table
}
