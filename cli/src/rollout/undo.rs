//! `assent rollout undo`.

use assent_core::PolicyKey;
use assent_proto::v1::UndoRequest;
use serde::Serialize;

use super::is_refusal;
use crate::{
    client::{self, ServerArgs},
    exit::Exit,
    name::{NamespaceArgs, PolicyName},
    out::{self, OutputArgs, clean},
};

/// Rolls back to an earlier revision of a policy.
///
/// The content of that revision becomes a new generation, with the module pinned to its digest. The new
/// generation is rolled out like any other: follow it with `assent rollout status`.
///
/// In a cluster this sets an annotation with your own permissions: you need `get` and `patch` of the
/// policy.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// NAME, NAMESPACE/NAME, cluster/NAME or namespaced/NAMESPACE/NAME
    #[arg(value_name = "POLICY")]
    policy: PolicyName,

    #[command(flatten)]
    namespace: NamespaceArgs,

    /// Generation to roll back to [default: the revision that was active before]
    #[arg(long, value_name = "GENERATION", value_parser = clap::value_parser!(i64).range(1..))]
    to_generation: Option<i64>,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent rollout undo no-privileged
  assent rollout undo no-privileged --to-generation 3

Exit codes: 0 = a new generation was made, 1 = there is nothing to go back to, 2 = error.";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Done {
    policy: String,
    /// Null if the control plane did not report it.
    from_generation: Option<i64>,
    new_generation: i64,
}

/// What came of it.
enum Undone {
    New { from: Option<i64>, new: i64 },
    Refused(String),
}

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            policy,
            namespace,
            to_generation,
            output,
            server,
        } = self;
        let key = policy.within(&namespace);
        let undone = client::block_on(undo(&server, &key, to_generation))?;
        let (from_generation, new_generation) = match undone {
            Undone::New { from, new } => (from, new),
            Undone::Refused(why) => {
                out::note(clean(&why));
                return Ok(Exit::No);
            }
        };
        if output.is_json() {
            out::json(&Done {
                policy: key.to_string(),
                from_generation,
                new_generation,
            })?;
            return Ok(Exit::Yes);
        }
        let from = match from_generation {
            Some(from) => format!("generation {from}"),
            None => "the previous revision".to_owned(),
        };
        out::line(format_args!(
            "{key}: generation {new_generation} has the content of {from}"
        ))?;
        Ok(Exit::Yes)
    }
}

async fn undo(server: &ServerArgs, key: &PolicyKey, to: Option<i64>) -> anyhow::Result<Undone> {
    #[cfg(feature = "cluster")]
    if let Some(remote) = server.cluster().await? {
        use assent_k8s::remote::RolledBack;
        // With the person's own rights: whoever may edit the policy may roll it back.
        return Ok(match remote.roll_back(key, to).await? {
            RolledBack::Done(new) => Undone::New { from: to, new },
            RolledBack::Refused(why) => Undone::Refused(why),
        });
    }
    let client = server.connect().await?;
    let request = UndoRequest {
        policy: key.to_string(),
        to_generation: to.unwrap_or_default(),
    };
    match client.call(client.rollouts().undo(request)).await {
        Ok(answer) => Ok(Undone::New {
            from: Some(answer.from_generation),
            new: answer.new_generation,
        }),
        Err(status) if is_refusal(&status) => Ok(Undone::Refused(status.message().to_owned())),
        Err(status) => Err(client.failed(&status)),
    }
}
