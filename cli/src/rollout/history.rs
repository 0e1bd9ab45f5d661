//! `assent rollout history`.

use assent_proto::v1::{ListRevisionsRequest, RevisionInfo};
use jiff::Timestamp;
use serde::Serialize;

use super::is_refusal;
use crate::{
    age,
    client::{self, ServerArgs},
    exit::Exit,
    name::{NamespaceArgs, PolicyName},
    out::{self, OutputArgs, clean},
    report::Revision,
    table::Table,
};

/// Lists the revisions of a policy, newest first.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// NAME, NAMESPACE/NAME, cluster/NAME or namespaced/NAMESPACE/NAME
    #[arg(value_name = "POLICY")]
    policy: PolicyName,

    #[command(flatten)]
    namespace: NamespaceArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent rollout history no-privileged
  assent rollout history shop/limits -o json

Exit codes: 0 = listed, 1 = there is no such policy, 2 = error.";

#[derive(Serialize)]
struct List {
    policy: String,
    revisions: Vec<Revision>,
}

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            policy,
            namespace,
            output,
            server,
        } = self;
        let key = policy.within(&namespace);
        let answered = client::block_on(async {
            let client = server.connect().await?;
            let request = ListRevisionsRequest {
                policy: key.to_string(),
            };
            match client.call(client.rollouts().list_revisions(request)).await {
                Ok(answer) => Ok(Ok(answer.revisions)),
                Err(status) if is_refusal(&status) => Ok(Err(status)),
                Err(status) => Err(client.failed(&status)),
            }
        })?;
        let revisions = match answered {
            Ok(revisions) => revisions,
            Err(status) => {
                out::note(clean(status.message()));
                return Ok(Exit::No);
            }
        };
        if output.is_json() {
            out::json(&List {
                policy: key.to_string(),
                revisions: revisions.iter().map(Revision::from).collect(),
            })?;
        } else if revisions.is_empty() {
            out::note(format_args!(
                "{key} has no revisions: no generation was ever accepted"
            ));
        } else {
            out::print(table(&revisions))?;
        }
        Ok(Exit::Yes)
    }
}

fn table(revisions: &[RevisionInfo]) -> Table {
    let now = Timestamp::now();
    let mut table = Table::new(["GENERATION", "PHASE", "REVISION", "AGE", "MODULE", "DIGEST"]);
    for revision in revisions {
        // The digest has its own column.
        let module = revision.module.split("#sha256:").next().unwrap_or_default();
        table.push([
            revision.generation.to_string(),
            revision.phase.clone(),
            revision.name.clone(),
            age::since(revision.created_at.as_ref(), now),
            module.to_owned(),
            revision.module_digest.clone(),
        ]);
    }
    table
}
