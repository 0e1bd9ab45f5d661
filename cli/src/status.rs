//! `assent status`: shows which policies are enforced, and why others are not.

use std::fmt::Write as _;

use assent_proto::v1;
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    age,
    client::{self, Answer, ServerArgs},
    exit::Exit,
    name::PolicyName,
    out::{self, OutputArgs},
    report::{Policy, Rejection, Replica},
    row::Row,
    table::Table,
};

/// Shows which policies are enforced, and why others are not.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only this policy, with its conditions: NAME, NAMESPACE/NAME, cluster/NAME or namespaced/NAMESPACE/NAME
    #[arg(value_name = "POLICY")]
    policy: Option<PolicyName>,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent status
  assent status no-privileged
  assent status shop/limits -o json

Exit codes: 0 = the policy is enforced (or none was named), 1 = it is not, 2 = error.";

/// All policies, as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    policy_server: String,
    version: String,
    policies: Vec<Policy>,
}

/// One policy, as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Detail {
    policy_server: String,
    #[serde(flatten)]
    policy: Policy,
    rejections: Vec<ReplicaRejection>,
}

#[derive(Serialize)]
struct ReplicaRejection {
    replica: String,
    #[serde(flatten)]
    rejection: Rejection,
}

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            policy,
            output,
            server,
        } = self;
        client::block_on(async {
            let client = server.connect().await?;
            let name = server.policy_server.clone();
            match policy {
                None => list(client.policies().await?, name, output),
                Some(PolicyName(key)) => {
                    let answer = client.everything(key.as_str(), Vec::new()).await?;
                    detail(&answer, key.as_str(), name, output)
                }
            }
        })
    }
}

fn list(answer: Answer, policy_server: String, output: OutputArgs) -> anyhow::Result<Exit> {
    let policies: Vec<Policy> = answer.policies.iter().map(Policy::from).collect();
    if output.is_json() {
        out::json(&List {
            policy_server,
            version: answer.version,
            policies,
        })?;
    } else if policies.is_empty() {
        out::note(format_args!(
            "there are no policies on the PolicyServer {policy_server}"
        ));
    } else {
        let rows: Vec<Row> = policies.iter().map(Row::from).collect();
        out::print(Row::table(&rows))?;
    }
    Ok(Exit::Yes)
}

fn detail(
    answer: &Answer,
    key: &str,
    policy_server: String,
    output: OutputArgs,
) -> anyhow::Result<Exit> {
    let Some(status) = answer.policies.iter().find(|status| status.policy == key) else {
        out::note(absent(key, &policy_server));
        return Ok(Exit::No);
    };
    let policy = Policy::from(status);
    let exit = Exit::yes_if(policy.enforced);
    if output.is_json() {
        out::json(&Detail {
            policy_server,
            policy,
            rejections: rejections(answer, key),
        })?;
    } else {
        out::print(text(status, &policy, &rejections(answer, key)))?;
    }
    Ok(exit)
}

/// The message about a policy that does not exist.
pub(crate) fn absent(key: &str, policy_server: &str) -> String {
    format!(
        "there is no policy {key} on the PolicyServer {policy_server}; `assent status` lists those that exist"
    )
}

/// The rejections of this policy's revisions.
fn rejections(answer: &Answer, key: &str) -> Vec<ReplicaRejection> {
    let of_policy = format!("{key}/");
    let mut found = Vec::new();
    for replica in answer.replicas.iter().map(Replica::from) {
        let name = replica.name;
        let about = |rejection: &Rejection| {
            // Without a revision the whole set was rejected, this policy included.
            rejection
                .revision
                .as_ref()
                .is_none_or(|revision| revision.starts_with(&of_policy))
        };
        let rejections = replica.rejected.into_iter().filter(about);
        found.extend(rejections.map(|rejection| ReplicaRejection {
            replica: name.clone(),
            rejection,
        }));
    }
    found
}

fn text(status: &v1::PolicyStatus, policy: &Policy, rejections: &[ReplicaRejection]) -> String {
    let mut text = String::new();
    let counts = policy.rollout;
    let or_none = |revision: &Option<String>| revision.clone().unwrap_or_else(|| "none".into());
    // Writing to a String never fails.
    let _ = write!(
        text,
        "policy       {}\ngeneration   {}\nactive       {}\ncandidate    {}\napplied      {} of {} replicas ({} rejected, {} behind, {} disconnected)\n\n",
        policy.policy,
        policy.generation,
        or_none(&policy.active_revision),
        or_none(&policy.candidate_revision),
        counts.applied,
        counts.desired,
        counts.rejected,
        counts.behind,
        counts.disconnected,
    );
    let now = Timestamp::now();
    let mut table = Table::new(["CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"]);
    for condition in &status.conditions {
        table.push([
            condition.r#type.clone(),
            condition.status.clone(),
            condition.reason.clone(),
            age::since(condition.last_transition_time.as_ref(), now),
            condition.message.clone(),
        ]);
    }
    let _ = write!(text, "{table}");
    if !rejections.is_empty() {
        let mut table = Table::new(["REPLICA", "REFUSED", "STAGE", "MESSAGE"]);
        for ReplicaRejection { replica, rejection } in rejections {
            let whole = || "everything".to_owned();
            let revision = rejection.revision.clone().unwrap_or_else(whole);
            let stage = rejection.stage.to_owned();
            table.push([replica.clone(), revision, stage, rejection.message.clone()]);
        }
        let _ = write!(text, "\n{table}");
    }
    text
}
