//! `assent rollout status`: waits until a change is enforced or has failed.

use std::time::Duration;

use assent_proto::v1::{ClientStatusResponse, PolicyStatus};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Status, Streaming};

use crate::{
    client::{self, Client, ServerArgs},
    exit::Exit,
    follow::{PAUSE, RECONNECT},
    name::{NamespaceArgs, PolicyName},
    out::{self, OutputArgs},
    report::Policy,
    row::Row,
    status::absent,
};

mod outcome;

use outcome::{Outcome, outcome_of};

/// Waits until the newest generation of a policy is enforced, refused or stalled.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// NAME, NAMESPACE/NAME, cluster/NAME or namespaced/NAMESPACE/NAME
    #[arg(value_name = "POLICY")]
    policy: PolicyName,

    #[command(flatten)]
    namespace: NamespaceArgs,

    /// Wait for this generation or a later one, even if the control plane has not observed it yet
    #[arg(long, value_name = "N")]
    generation: Option<i64>,

    /// Timeout in seconds, or with a unit: 90s, 5m, 1h [default: none]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,

    /// Print the current state without waiting
    #[arg(long, conflicts_with = "timeout")]
    no_wait: bool,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent rollout status no-privileged
  assent rollout status shop/limits --timeout 2m
  assent rollout status no-privileged --generation \\
    \"$(kubectl get cap no-privileged -o jsonpath={.metadata.generation})\"

Exit codes: 0 = enforced, 1 = refused, stalled or not in time, 2 = error.";

/// Watches one policy.
struct Watch {
    server: ServerArgs,
    key: String,
    generation: Option<i64>,
    no_wait: bool,
    deadline: Option<Instant>,
    /// The last state that was printed.
    last: Option<Row>,
}

/// The final state.
struct End {
    policy: Option<Policy>,
    outcome: Outcome,
}

/// Stands for no deadline.
const NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            policy,
            namespace,
            generation,
            timeout,
            no_wait,
            output,
            server,
        } = self;
        let policy_server = server.policy_server.clone();
        let key = policy.within(&namespace).to_string();
        let end = client::block_on(async {
            let watch = Watch {
                server,
                key: key.clone(),
                generation,
                no_wait,
                deadline: timeout.map(|timeout| Instant::now() + timeout),
                last: None,
            };
            watch.run().await
        })?;
        match &end.policy {
            Some(policy) if output.is_json() => out::json(policy)?,
            Some(_) => out::line(end.outcome.sentence(&key))?,
            None => out::note(absent(&key, policy_server.as_deref())),
        }
        Ok(Exit::yes_if(end.outcome == Outcome::Enforced))
    }
}

// === impl Watch ===

impl Watch {
    async fn run(mut self) -> anyhow::Result<End> {
        let mut client = self.server.connect().await?;
        let mut stream = self.follow(&client).await?;
        let mut seen = None;
        loop {
            let until = self.deadline.unwrap_or_else(|| Instant::now() + NEVER);
            match timeout_at(until, stream.message()).await {
                Err(_) => return Ok(End::late(seen)),
                Ok(Ok(Some(answer))) => {
                    seen = answer
                        .policies
                        .into_iter()
                        .find(|status| status.policy == self.key);
                    if let Some(end) = self.observe(seen.as_ref()) {
                        return Ok(end);
                    }
                }
                Ok(ended) => {
                    let status = ended
                        .err()
                        .unwrap_or_else(|| Status::unavailable("the stream ended"));
                    (client, stream) = self.reconnect(&client, status).await?;
                }
            }
        }
    }

    async fn follow(&self, client: &Client) -> anyhow::Result<Streaming<ClientStatusResponse>> {
        let server = client.server_of(&self.key).await?;
        let followed = client.follow(&server, &self.key).await;
        followed.map_err(|status| client.failed(&status))
    }

    /// Prints a changed state; returns the end if there is nothing left to wait for.
    fn observe(&mut self, status: Option<&PolicyStatus>) -> Option<End> {
        let outcome = match status {
            Some(status) => outcome_of(status, self.generation),
            // Without a generation to wait for, the policy does not exist.
            None if self.generation.is_some() && !self.no_wait => {
                Outcome::waiting("not observed yet")
            }
            None => Outcome::Absent,
        };
        let policy = status.map(Policy::from);
        let row = policy.as_ref().map(Row::from);
        if matches!(outcome, Outcome::Waiting(_)) && !self.no_wait {
            if let Some(row) = row.as_ref().filter(|row| self.last.as_ref() != Some(row)) {
                out::note(row);
            }
            self.last = row;
            return None;
        }
        Some(End { policy, outcome })
    }

    /// Reconnects, for some time: the leader may change, and a restart takes a while.
    async fn reconnect(
        &self,
        client: &Client,
        status: Status,
    ) -> anyhow::Result<(Client, Streaming<ClientStatusResponse>)> {
        if status.code() != tonic::Code::Unavailable && status.code() != tonic::Code::Unknown {
            return Err(client.failed(&status));
        }
        out::note("lost the connection to the control plane; reconnecting …");
        let patience = Instant::now() + RECONNECT;
        let until = self
            .deadline
            .map_or(patience, |deadline| deadline.min(patience));
        loop {
            sleep(PAUSE).await;
            let error = match self.server.connect().await {
                Ok(client) => match self.follow(&client).await {
                    Ok(stream) => return Ok((client, stream)),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if Instant::now() >= until {
                return Err(error);
            }
        }
    }
}

// === impl End ===

impl End {
    fn late(status: Option<PolicyStatus>) -> Self {
        let why = match &status {
            Some(status) => Row::from(&Policy::from(status)).why(),
            None => "the control plane has not observed it".to_owned(),
        };
        Self {
            policy: status.as_ref().map(Policy::from),
            outcome: Outcome::Late(why),
        }
    }
}

/// Parses seconds, or a number with a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) => (number, &text[number.len()..]),
        None => (text, "s"),
    };
    let seconds = match unit {
        "h" => 3_600,
        "m" => 60,
        _ => 1,
    };
    let number: u32 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a duration such as 90, 90s, 5m or 1h"))?;
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, seconds) in [
            ("90", 90),
            ("0", 0),
            ("30s", 30),
            ("5m", 300),
            ("2h", 7_200),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "s", "-1", "1d", "1.5", "99999999999h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
