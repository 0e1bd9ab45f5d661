//! `assent rollout undo`.

use assent_proto::v1::UndoRequest;
use serde::Serialize;

use super::is_refusal;
use crate::{
    client::{self, ServerArgs},
    exit::Exit,
    name::PolicyName,
    out::{self, OutputArgs, clean},
};

/// Rolls back to an earlier revision of a policy.
///
/// The content of that revision becomes a new generation, with the module pinned to its digest. The new
/// generation is rolled out like any other: follow it with `assent rollout status`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// NAME, NAMESPACE/NAME, cluster/NAME or namespaced/NAMESPACE/NAME
    #[arg(value_name = "POLICY")]
    policy: PolicyName,

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

Exit codes: 0 = a new generation was made, 1 = there is nothing to go back to, 2 = it could not be asked.";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Done {
    policy: String,
    from_generation: i64,
    new_generation: i64,
}

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            policy: PolicyName(key),
            to_generation,
            output,
            server,
        } = self;
        let answered = client::block_on(async {
            let client = server.connect().await?;
            let request = UndoRequest {
                policy: key.to_string(),
                to_generation: to_generation.unwrap_or_default(),
            };
            match client.call(client.rollouts().undo(request)).await {
                Ok(answer) => Ok(Ok(answer)),
                Err(status) if is_refusal(&status) => Ok(Err(status)),
                Err(status) => Err(client.failed(&status)),
            }
        })?;
        let done = match answered {
            Ok(undone) => Done {
                policy: key.to_string(),
                from_generation: undone.from_generation,
                new_generation: undone.new_generation,
            },
            Err(status) => {
                out::note(clean(status.message()));
                return Ok(Exit::No);
            }
        };
        if output.is_json() {
            out::json(&done)?;
        } else {
            out::line(format_args!(
                "{}: generation {} has the content of generation {}",
                done.policy, done.new_generation, done.from_generation
            ))?;
        }
        Ok(Exit::Yes)
    }
}
