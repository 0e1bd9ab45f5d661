//! `--watch`: shows changes as they happen.

use std::{collections::BTreeMap, time::Duration};

use assent_proto::v1::{ClientStatusRequest, ClientStatusResponse};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, interval, sleep},
};
use tonic::Status;

use crate::{
    client::{Client, ServerArgs},
    out::{self, Closed},
};

/// A restart or a change of leader takes less than this.
pub(crate) const RECONNECT: Duration = Duration::from_secs(60);

/// Interval of reconnection attempts.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// How often PolicyServers that were added or removed are noticed.
const RELIST: Duration = Duration::from_secs(15);

/// Follows the state of PolicyServers.
pub(crate) struct Follow<'a, M, C> {
    pub(crate) args: &'a ServerArgs,
    /// The request for a PolicyServer.
    pub(crate) make: M,
    /// Called with each response; nobody reads on after an error.
    pub(crate) changed: C,
}

/// What was shown of each thing, so that only changes are shown.
#[derive(Debug, Default)]
pub(crate) struct Shown(BTreeMap<(String, String), String>);

/// Why the streams of a connection are over.
enum Over {
    /// The PolicyServers are not those that are followed.
    Relisted,
    /// Nobody reads the output any more.
    Unread,
    Lost(anyhow::Error),
}

// === impl Follow ===

impl<M, C> Follow<'_, M, C>
where
    M: Fn(&str) -> ClientStatusRequest,
    C: FnMut(&str, ClientStatusResponse) -> Result<(), Closed>,
{
    /// Runs until the process is ended, the output is closed, or the control plane is gone.
    pub(crate) async fn run(mut self) -> anyhow::Result<()> {
        let mut client = self.args.connect().await?;
        let mut until = None;
        loop {
            let mut answered = false;
            let over = self.session(&client, &mut answered).await;
            if answered {
                until = None;
            }
            let error = match over {
                Over::Relisted => continue,
                // As with `head`: not an error.
                Over::Unread => return Ok(()),
                Over::Lost(error) => error,
            };
            // The first connection must work: a mistake is not retried.
            if until.is_none() && !answered {
                return Err(error);
            }
            if until.is_none() {
                out::note("lost the connection to the control plane; reconnecting …");
            }
            let until = *until.get_or_insert_with(|| Instant::now() + RECONNECT);
            client = reconnect(self.args, until, error).await?;
        }
    }

    async fn session(&mut self, client: &Client, answered: &mut bool) -> Over {
        let servers = match client.servers().await {
            Ok(servers) => servers,
            Err(error) => return Over::Lost(error),
        };
        let (sender, mut messages) = mpsc::channel(1);
        // Dropping the set ends the streams.
        let mut streams = JoinSet::new();
        for server in servers.clone() {
            let mut stream = match client.stream((self.make)(&server)).await {
                Ok(stream) => stream,
                Err(status) => return Over::Lost(client.failed(&status)),
            };
            let sender = sender.clone();
            streams.spawn(async move {
                loop {
                    let message = stream.message().await;
                    let ended = !matches!(message, Ok(Some(_)));
                    if sender.send((server.clone(), message)).await.is_err() || ended {
                        return;
                    }
                }
            });
        }
        let mut relist = interval(RELIST);
        relist.reset();
        loop {
            tokio::select! {
                Some((server, message)) = messages.recv() => match message {
                    Ok(Some(answer)) => {
                        *answered = true;
                        if (self.changed)(&server, answer).is_err() {
                            return Over::Unread;
                        }
                    }
                    ended => {
                        let ended = ended.err();
                        let status = ended.unwrap_or_else(|| Status::unavailable("the stream ended"));
                        return Over::Lost(client.failed(&status));
                    }
                },
                _ = relist.tick() => match client.servers().await {
                    Ok(now) if now == servers => {}
                    Ok(_) => return Over::Relisted,
                    Err(error) => return Over::Lost(error),
                },
            }
        }
    }
}

/// Connects again, for some time: the leader may change, and a restart takes a while.
async fn reconnect(
    args: &ServerArgs,
    until: Instant,
    mut error: anyhow::Error,
) -> anyhow::Result<Client> {
    while Instant::now() < until {
        sleep(PAUSE).await;
        match args.connect().await {
            Ok(client) => return Ok(client),
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

// === impl Shown ===

impl Shown {
    /// The things of a PolicyServer that are not as they were shown, and the names of those that
    /// are gone.
    pub(crate) fn update(
        &mut self,
        server: &str,
        now: impl IntoIterator<Item = (String, String)>,
    ) -> (Vec<String>, Vec<String>) {
        let mut before = std::mem::take(&mut self.0);
        let mut changed = Vec::new();
        for (name, text) in now {
            let key = (server.to_owned(), name);
            if before.remove(&key).as_ref() != Some(&text) {
                changed.push(key.1.clone());
            }
            self.0.insert(key, text);
        }
        let (gone, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            before.into_iter().partition(|((of, _), _)| of == server);
        self.0.extend(others);
        (changed, gone.into_keys().map(|(_, name)| name).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_shown() {
        let mut shown = Shown::default();
        let mut check = |server: &str, now: &[(&str, &str)], changed: &[&str], gone: &[&str]| {
            let now = now.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
            let (new, old) = shown.update(server, now);
            assert_eq!(
                (new, old),
                (
                    changed.iter().map(|s| (*s).to_owned()).collect(),
                    gone.iter().map(|s| (*s).to_owned()).collect(),
                )
            );
        };
        check("default", &[("a", "1"), ("b", "1")], &["a", "b"], &[]);
        check("tenants", &[("a", "1")], &["a"], &[]);
        check("default", &[("a", "2"), ("b", "1")], &["a"], &[]);
        check("default", &[("a", "2")], &[], &["b"]);
        check("tenants", &[("a", "1")], &[], &[]);
        check("default", &[("b", "1"), ("a", "2")], &["b"], &[]);
    }
}
