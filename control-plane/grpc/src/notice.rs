//! What streams tell the driver.

use std::{sync::Arc, time::Duration};

use assent_core::{
    fleet::{Name, Node},
    session::Report,
};
use tokio::sync::mpsc;

/// Notices that are decided upon together at most.
pub const BATCH: usize = 1_024;

/// A push to a thousand replicas brings two thousand notices within a few milliseconds.
/// Waking the driver for each costs more than what they say.
const GATHERING: Duration = Duration::from_millis(1);

/// What streams and health checks tell the driver, in the order in which it happened on
/// one stream. The channel is bounded: when it is full, the stream that wants to say
/// something waits, and nobody else.
#[derive(Clone, Debug)]
pub enum Notice {
    /// An authenticated stream opened.
    Opened {
        /// Its PolicyServer.
        server: Name,
        /// What the client says of itself.
        node: Node,
        /// What its credential says.
        identity: String,
        /// The stream's number; later streams of a replica have higher ones.
        stream: u64,
    },
    /// A stream's replica was sent something, or said something.
    Reported {
        /// Its PolicyServer.
        server: Name,
        /// The replica.
        replica: Name,
        /// The stream.
        stream: u64,
        /// What it has and said.
        report: Report,
    },
    /// A stream ended, or its client no longer reads.
    Closed {
        /// Its PolicyServer.
        server: Name,
        /// The replica.
        replica: Name,
        /// The stream.
        stream: u64,
    },
    /// A replica was heard of outside its stream.
    Heard {
        /// Its PolicyServer.
        server: Name,
        /// The replica.
        replica: Name,
    },
    /// A replica saw requests on a retired route since its last health check.
    RetiredRequests {
        /// Its PolicyServer.
        server: Name,
        /// The replica.
        replica: Name,
        /// The route.
        path: Arc<str>,
        /// How many.
        requests: u64,
    },
}

/// Adds to `batch`, which has the first notices, those that follow close behind.
pub async fn gather(notices: &mut mpsc::Receiver<Notice>, batch: &mut Vec<Notice>) {
    if batch.is_empty() || batch.len() >= BATCH {
        return;
    }
    tokio::time::sleep(GATHERING).await;
    while batch.len() < BATCH
        && let Ok(notice) = notices.try_recv()
    {
        batch.push(notice);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mk_notice(n: usize) -> Notice {
        Notice::Heard {
            server: "default".into(),
            replica: n.to_string().into(),
        }
    }

    #[tokio::test]
    async fn what_follows_close_behind_is_one_batch() {
        let (tx, mut rx) = mpsc::channel(2 * BATCH);
        for n in 0..=BATCH {
            tx.send(mk_notice(n)).await.unwrap();
        }
        let mut batch = vec![rx.recv().await.unwrap()];
        gather(&mut rx, &mut batch).await;
        assert_eq!(batch.len(), BATCH);
        // A full batch does not wait.
        gather(&mut rx, &mut batch).await;
        assert_eq!((batch.len(), rx.len()), (BATCH, 1));
    }
}
