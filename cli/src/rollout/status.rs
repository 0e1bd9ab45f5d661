//! `assent rollout status`: waits until a change is enforced, or can't be.

use std::time::Duration;

use assent_proto::v1::{ClientStatusResponse, PolicyStatus};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Status, Streaming};

use crate::{
    client::{self, Client, ServerArgs},
    exit::Exit,
    name::PolicyName,
    out::{self, OutputArgs},
    report::Policy,
    row::Row,
    status::absent,
};

mod judge;

use judge::{Outcome, judge};

/// Waits until the newest generation of a policy is enforced, or is refused or stalled.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// NAME, NAMESPACE/NAME, cluster/NAME or namespaced/NAMESPACE/NAME
    #[arg(value_name = "POLICY")]
    policy: PolicyName,

    /// Wait for this generation or a later one, also if the control plane has not seen it yet
    #[arg(long, value_name = "N")]
    generation: Option<i64>,

    /// Give up after this time: seconds, or with a unit as in 90s, 5m, 1h [default: never]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,

    /// Say how it is and do not wait
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

Exit codes: 0 = enforced, 1 = refused, stalled or not in time, 2 = it could not be asked.";

/// Waiting for one policy.
struct Watch {
    server: ServerArgs,
    key: String,
    generation: Option<i64>,
    no_wait: bool,
    deadline: Option<Instant>,
    /// The last state that was told.
    last: Option<Row>,
}

/// How it ended.
struct End {
    policy: Option<Policy>,
    outcome: Outcome,
}

/// A control plane restarts, or hands over, within this time.
const RECONNECT: Duration = Duration::from_secs(60);

/// Between attempts to connect again.
const PAUSE: Duration = Duration::from_secs(1);

/// No deadline: further away than anybody waits.
const NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            policy: PolicyName(key),
            generation,
            timeout,
            no_wait,
            output,
            server,
        } = self;
        let policy_server = server.policy_server.clone();
        let key = key.to_string();
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
            None => out::note(absent(&key, &policy_server)),
        }
        Ok(Exit::yes_if(end.outcome == Outcome::Enforced))
    }
}

// === impl Watch ===

impl Watch {
    async fn run(mut self) -> anyhow::Result<End> {
        let mut client = self.server.connect().await?;
        let mut stream = client
            .follow(&self.key)
            .await
            .map_err(|status| client.failed(&status))?;
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
                    if let Some(end) = self.look(seen.as_ref()) {
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

    /// Tells what changed; some where there is nothing to wait for.
    fn look(&mut self, status: Option<&PolicyStatus>) -> Option<End> {
        let outcome = match status {
            Some(status) => judge(status, self.generation),
            // Not seen yet, where a generation is awaited; else it does not exist.
            None if self.generation.is_some() && !self.no_wait => Outcome::waiting("not seen yet"),
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

    /// Tries again for a while: leaders change, and a restart takes its time.
    async fn reconnect(
        &self,
        client: &Client,
        status: Status,
    ) -> anyhow::Result<(Client, Streaming<ClientStatusResponse>)> {
        if status.code() != tonic::Code::Unavailable && status.code() != tonic::Code::Unknown {
            return Err(client.failed(&status));
        }
        out::note("the connection to the control plane is lost; connecting again …");
        let patience = Instant::now() + RECONNECT;
        let until = self
            .deadline
            .map_or(patience, |deadline| deadline.min(patience));
        loop {
            sleep(PAUSE).await;
            let error = match self.server.connect().await {
                Ok(client) => match client.follow(&self.key).await {
                    Ok(stream) => return Ok((client, stream)),
                    Err(status) => client.failed(&status),
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
            None => "the control plane has not seen it".to_owned(),
        };
        Self {
            policy: status.as_ref().map(Policy::from),
            outcome: Outcome::Late(why),
        }
    }
}

/// Seconds, or a number with a unit.
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
        .map_err(|_| format!("{text:?} is not a time such as 90, 90s, 5m or 1h"))?;
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
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
