//! Events of streams and health checks, and how the controller receives them.
//!
//! The channel is bounded: when it is full, only the stream that has something to report
//! waits.

use std::time::Duration;

pub use assent_core::plane::StreamEvent;
use tokio::sync::mpsc;

/// The most events that are handled in one batch.
pub const BATCH: usize = 1_024;

/// A push to a thousand replicas causes two thousand events within a few milliseconds.
/// Waking the receiver for each of them costs more than handling it.
const GATHERING: Duration = Duration::from_millis(1);

/// Adds events that arrive within a millisecond to `batch`, which holds the first ones.
pub async fn gather(events: &mut mpsc::Receiver<StreamEvent>, batch: &mut Vec<StreamEvent>) {
    if batch.is_empty() || batch.len() >= BATCH {
        return;
    }
    tokio::time::sleep(GATHERING).await;
    while batch.len() < BATCH
        && let Ok(event) = events.try_recv()
    {
        batch.push(event);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mk_event(n: usize) -> StreamEvent {
        StreamEvent::Heartbeat {
            server: "default".into(),
            replica: n.to_string().into(),
        }
    }

    #[tokio::test]
    async fn events_that_arrive_together_form_one_batch() {
        let (tx, mut rx) = mpsc::channel(2 * BATCH);
        for n in 0..=BATCH {
            tx.send(mk_event(n)).await.unwrap();
        }
        let mut batch = vec![rx.recv().await.unwrap()];
        gather(&mut rx, &mut batch).await;
        assert_eq!(batch.len(), BATCH);
        // A full batch does not wait.
        gather(&mut rx, &mut batch).await;
        assert_eq!((batch.len(), rx.len()), (BATCH, 1));
    }
}
