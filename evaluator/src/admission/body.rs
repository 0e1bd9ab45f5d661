//! Reads the body of a request. Memory is reserved as bytes arrive: what a client announces costs nothing.

use std::task::Poll;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body;

pub(crate) use super::review::Error;
use crate::evaluation::{Reading, RequestMemory};

/// An UPDATE carries two objects of at most 3 MiB each.
pub(crate) const MAX_BODY: usize = 7 << 20;

/// The least that is reserved and allocated at once.
const STEP: usize = 4 << 10;

/// Reads everything, up to `limit` bytes. Pieces are copied into one buffer: a body in pieces of one byte would cost many times its length
/// otherwise.
pub(crate) async fn read<B>(
    mut body: B,
    mut reading: Reading,
    limit: usize,
) -> Result<(Bytes, RequestMemory), Error>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let announced = body.size_hint();
    if announced.lower() > limit as u64 {
        return Err(Error::TooLarge(limit));
    }
    // A body of known length gets a buffer of that length at the end of its growth, and not twice as much.
    let exact = announced
        .exact()
        .and_then(|exact| usize::try_from(exact).ok());
    let mut buffer = BytesMut::new();
    loop {
        let mut next = body.frame();
        let frame = match futures::poll!(&mut next) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                reading.wait()?;
                next.await
            }
        };
        let Some(frame) = frame else {
            break;
        };
        let frame = frame.map_err(|error| Error::Body(error.to_string()))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let length = buffer.len() + data.len();
        if length > limit {
            return Err(Error::TooLarge(limit));
        }
        if buffer.is_empty() && exact == Some(data.len()) {
            // One piece, as most bodies are.
            reading.grow(data.len())?;
            return Ok((data, reading.complete()));
        }
        let needed = capacity(buffer.capacity(), length, exact.unwrap_or(limit));
        reading.grow(needed - buffer.capacity())?;
        buffer.reserve(needed - buffer.len());
        buffer.extend_from_slice(&data);
    }
    Ok((buffer.freeze(), reading.complete()))
}

/// How large the buffer must be for `length` bytes: doubled, so that copying stays linear, up to what can come.
fn capacity(now: usize, length: usize, most: usize) -> usize {
    if length <= now {
        return now;
    }
    let most = most.max(length);
    length.max(now.saturating_mul(2)).max(STEP).min(most)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use futures::stream;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    use super::*;
    use crate::evaluation::{Intake, Overloaded};

    fn mk_reading(bodies: u64) -> Reading {
        let mut reading = Arc::new(Intake::new(bodies)).begin([10, 0, 0, 1].into());
        reading.wait().unwrap();
        reading
    }

    fn pieces(
        count: usize,
        piece: &'static [u8],
    ) -> impl Body<Data = Bytes, Error = String> + Unpin {
        let frames =
            (0..count).map(move |_| Ok::<_, String>(Frame::data(Bytes::from_static(piece))));
        StreamBody::new(stream::iter(frames))
    }

    #[tokio::test]
    async fn pieces_become_one_body() {
        let (body, _memory) = read(pieces(10_000, b"ab"), mk_reading(1 << 20), MAX_BODY)
            .await
            .unwrap();
        assert_eq!(body, b"ab".repeat(10_000));
        let (body, _memory) = read(
            Full::new(Bytes::from("whole")),
            mk_reading(1 << 20),
            MAX_BODY,
        )
        .await
        .unwrap();
        assert_eq!(body, "whole");
        let (body, _memory) = read(pieces(0, b""), mk_reading(1 << 20), MAX_BODY)
            .await
            .unwrap();
        assert!(body.is_empty());
    }

    #[tokio::test]
    async fn a_body_that_does_not_end_is_refused_at_the_limit() {
        let endless = pieces(usize::MAX, &[0; 1024]);
        let read = read(endless, mk_reading(1 << 30), MAX_BODY).await;
        assert!(matches!(read, Err(Error::TooLarge(MAX_BODY))));
    }

    #[tokio::test]
    async fn memory_is_refused_when_it_is_needed() {
        // The share of one client is a quarter.
        let read = read(pieces(100, &[0; 1024]), mk_reading(256 << 10), MAX_BODY).await;
        assert!(matches!(read, Err(Error::Overloaded(Overloaded::Peer))));
    }

    #[test]
    fn a_buffer_grows_by_doubling_up_to_what_can_come() {
        assert_eq!(capacity(0, 1, MAX_BODY), STEP);
        assert_eq!(capacity(0, 1, 100), 100);
        assert_eq!(capacity(STEP, STEP + 1, MAX_BODY), 2 * STEP);
        assert_eq!(capacity(STEP, STEP, MAX_BODY), STEP);
        assert_eq!(capacity(6 << 20, (6 << 20) + 1, MAX_BODY), MAX_BODY);
        assert_eq!(capacity(STEP, STEP + 1, STEP + 1), STEP + 1);
    }
}
