//! `assent status`: shows which policies are enforced, and why others are not.

use std::fmt::Write as _;

use assent_proto::v1;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::{
    age,
    client::{self, Answer, ServerArgs},
    exit::Exit,
    follow::{Follow, Shown},
    name::{NamespaceArgs, PolicyName},
    out::{self, Closed, OutputArgs},
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
    namespace: NamespaceArgs,

    /// Print a line for each policy, and for each change until interrupted
    #[arg(short, long)]
    watch: bool,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent status                            the cluster of the kubeconfig, or `assent up`
  assent status --context production -n shop
  assent status no-privileged
  assent status shop/limits -o json
  assent status --watch

Exit codes: 0 = the policy is enforced (or none was named), 1 = it is not, 2 = error.";

/// All policies, as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    /// Absent if there are several PolicyServers.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    policy_servers: Vec<Server>,
    policies: Vec<Located>,
}

/// A PolicyServer, as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) version: String,
}

/// One policy and its PolicyServer, as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Located {
    policy_server: String,
    #[serde(flatten)]
    policy: Policy,
}

/// One policy with rejections, as JSON.
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
            namespace,
            watch,
            output,
            server,
        } = self;
        let key = policy.map(|policy| policy.within(&namespace).to_string());
        client::block_on(async {
            if watch {
                return follow(&server, key, &namespace, output).await;
            }
            let client = server.connect().await?;
            match key {
                None => {
                    let mut answers = Vec::new();
                    for server in client.servers().await? {
                        let mut answer = client.policies(&server).await?;
                        let shown = |p: &v1::PolicyStatus| namespace.contains(&p.policy);
                        answer.policies.retain(shown);
                        answers.push(answer);
                    }
                    list(&answers, output)
                }
                Some(key) => match client.find(&key).await? {
                    Some(answer) => detail(&answer, &key, output),
                    None => {
                        out::note(absent(&key, server.policy_server.as_deref()));
                        Ok(Exit::No)
                    }
                },
            }
        })
    }
}

fn list(answers: &[Answer], output: OutputArgs) -> anyhow::Result<Exit> {
    let only = match answers {
        [only] => Some(only),
        _ => None,
    };
    let mut policies = Vec::new();
    for answer in answers {
        policies.extend(answer.policies.iter().map(|policy| Located {
            policy_server: answer.policy_server.clone(),
            policy: Policy::from(policy),
        }));
    }
    if output.is_json() {
        out::json(&List {
            policy_server: only.map(|answer| answer.policy_server.clone()),
            version: only.map(|answer| answer.version.clone()),
            policy_servers: answers.iter().map(Server::from).collect(),
            policies,
        })?;
    } else if policies.is_empty() {
        out::note(nothing(only));
    } else if only.is_some() {
        let rows: Vec<Row> = policies.iter().map(|p| Row::from(&p.policy)).collect();
        out::print(Row::table(&rows))?;
    } else {
        let mut table = Table::new(["SERVER"].into_iter().chain(Row::HEADER));
        for Located {
            policy_server,
            policy,
        } in &policies
        {
            let cells = Row::from(policy).cells();
            table.push([policy_server.clone()].into_iter().chain(cells));
        }
        out::print(table)?;
    }
    Ok(Exit::Yes)
}

/// The message about no policies at all.
fn nothing(only: Option<&Answer>) -> String {
    match only {
        Some(answer) => format!(
            "there are no policies on the PolicyServer {}",
            answer.policy_server
        ),
        None => "there are no policies".to_owned(),
    }
}

async fn follow(
    args: &ServerArgs,
    key: Option<String>,
    namespace: &NamespaceArgs,
    output: OutputArgs,
) -> anyhow::Result<Exit> {
    let mut shown = Shown::default();
    let changed = |server: &str, answer: v1::ClientStatusResponse| -> Result<(), Closed> {
        let policies = answer.policies.iter().map(Policy::from);
        let policies: Vec<Policy> = policies
            .filter(|policy| namespace.contains(&policy.policy))
            .collect();
        let rows = policies
            .iter()
            .map(|p| (p.policy.clone(), Row::from(p).to_string()));
        let (changed, gone) = shown.update(server, rows);
        for policy in policies.into_iter().filter(|p| changed.contains(&p.policy)) {
            if !output.is_json() {
                out::endless_line(Row::from(&policy))?;
                continue;
            }
            let policy_server = server.to_owned();
            out::endless_line(json!(Located {
                policy_server,
                policy,
            }))?;
        }
        for policy in gone {
            match output.is_json() {
                true => out::endless_line(
                    json!({"policyServer": server, "policy": policy, "deleted": true}),
                )?,
                false => out::endless_line(format_args!("{policy} deleted"))?,
            }
        }
        Ok(())
    };
    let make = |server: &str| v1::ClientStatusRequest {
        policy: key.clone().unwrap_or_default(),
        ..client::request(server, 1)
    };
    let follow = Follow {
        args,
        make,
        changed,
    };
    follow.run().await?;
    Ok(Exit::Yes)
}

fn detail(answer: &Answer, key: &str, output: OutputArgs) -> anyhow::Result<Exit> {
    let policy_server = answer.policy_server.clone();
    let Some(status) = answer.policies.iter().find(|status| status.policy == key) else {
        out::note(absent(key, Some(&policy_server)));
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
pub(crate) fn absent(key: &str, policy_server: Option<&str>) -> String {
    let place = policy_server.map(|server| format!(" on the PolicyServer {server}"));
    format!(
        "there is no policy {key}{}; `assent status` lists those that exist",
        place.unwrap_or_default()
    )
}

// === impl Server ===

impl From<&Answer> for Server {
    fn from(answer: &Answer) -> Self {
        Self {
            name: answer.policy_server.clone(),
            version: answer.version.clone(),
        }
    }
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
