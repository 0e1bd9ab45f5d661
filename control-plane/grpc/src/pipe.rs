//! The connection between a stream's task and the response body that HTTP/2 reads.
//!
//! The body returns chunks when it is polled, and records whether it was polled again
//! afterwards. If that poll does not come, the window of the client is full: it does not read
//! (R29).

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use tokio::{sync::Notify, time::Instant};
use tonic::{Code, Status};

use crate::encode::Encoded;

#[cfg(test)]
mod tests;

/// The shared half. The stream's task writes it, and so does everything that closes streams.
#[derive(Debug)]
pub(crate) struct Pipe {
    state: Mutex<State>,
    /// Wakes the task: there is room, the body was dropped, or the stream was closed.
    wake: Notify,
}

/// The half that the connection polls.
#[derive(Debug)]
pub(crate) struct PipeBody(Arc<Pipe>);

#[derive(Debug)]
struct State {
    chunks: VecDeque<Bytes>,
    /// The body was polled after its last chunk: the connection has taken everything.
    drained: bool,
    /// When a chunk was taken last, or the first one was put in.
    progress: Instant,
    /// How the stream ends, after the chunks.
    end: Option<Status>,
    /// The end was returned, or the client has left.
    over: bool,
    reader: Option<Waker>,
    /// The task waits for room.
    waiting: bool,
    /// When the replica last sent a health check.
    health: Option<Instant>,
}

// === impl Pipe ===

impl Pipe {
    pub(crate) fn new() -> (Arc<Self>, PipeBody) {
        let pipe = Arc::new(Self {
            state: Mutex::new(State {
                chunks: VecDeque::new(),
                drained: true,
                progress: Instant::now(),
                end: None,
                over: false,
                reader: None,
                waiting: false,
                health: None,
            }),
            wake: Notify::new(),
        });
        let body = PipeBody(pipe.clone());
        (pipe, body)
    }

    /// Waits until something changed that concerns the task.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }

    /// Adds a response. The caller must have checked that there is room.
    pub(crate) fn push(&self, encoded: &Encoded, nonce: assent_core::session::Nonce) {
        let mut state = self.lock();
        if state.end.is_some() || state.over {
            return;
        }
        encoded.chunks(nonce, &mut state.chunks);
        state.drained = false;
        state.progress = Instant::now();
        wake(state);
    }

    /// Whether the connection has taken the last response; if not, the task is woken once it has.
    pub(crate) fn has_room(&self) -> bool {
        let mut state = self.lock();
        state.waiting = !state.chunks.is_empty();
        !state.waiting
    }

    /// Ends the body after its chunks.
    pub(crate) fn finish(&self, status: Status) {
        let mut state = self.lock();
        state.end.get_or_insert(status);
        wake(state);
    }

    /// Ends the body now and drops its chunks. An earlier end stays.
    pub(crate) fn close(&self, status: Status) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.chunks.clear();
            state.end = Some(status);
        }
        wake(state);
        self.wake.notify_one();
    }

    /// Whether the stream has ended, from either side.
    pub(crate) fn is_ended(&self) -> bool {
        let state = self.lock();
        state.end.is_some() || state.over
    }

    /// How the stream ended; `None` if it has not, or if the client left.
    pub(crate) fn end_code(&self) -> Option<Code> {
        self.lock().end.as_ref().map(Status::code)
    }

    /// Whether the body will not be polled again.
    pub(crate) fn is_over(&self) -> bool {
        self.lock().over
    }

    /// The time by which the client must read on; `None` if it has read everything.
    pub(crate) fn send_deadline(&self, limit: Duration) -> Option<Instant> {
        let state = self.lock();
        (!state.drained).then(|| state.progress + limit)
    }

    /// The replica sent a health check.
    pub(crate) fn heard(&self) {
        let first = self.lock().health.replace(Instant::now()).is_none();
        if first {
            self.wake.notify_one();
        }
    }

    /// When the replica last sent a health check.
    pub(crate) fn last_heard(&self) -> Option<Instant> {
        self.lock().health
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl PipeBody ===

impl http_body::Body for PipeBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut state = self.0.lock();
        if state.over {
            return Poll::Ready(None);
        }
        if let Some(chunk) = state.chunks.pop_front() {
            state.progress = Instant::now();
            if state.waiting && state.chunks.is_empty() {
                state.waiting = false;
                self.0.wake.notify_one();
            }
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        state.drained = true;
        if let Some(end) = &state.end {
            let trailers = trailers(end);
            state.over = true;
            self.0.wake.notify_one();
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        let known = state
            .reader
            .as_ref()
            .is_some_and(|w| w.will_wake(cx.waker()));
        if !known {
            state.reader = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for PipeBody {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.over = true;
        state.chunks.clear();
        state.reader = None;
        drop(state);
        self.0.wake.notify_one();
    }
}

/// Wakes the reader after the lock was released, so that it does not wait for the lock.
fn wake(mut state: MutexGuard<'_, State>) {
    let reader = state.reader.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

fn trailers(status: &Status) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(2);
    if status.add_header(&mut headers).is_err() {
        // Messages are percent-encoded, so that only other parts of a status can be no header value.
        headers.insert("grpc-status", http::HeaderValue::from_static("13"));
    }
    headers
}
