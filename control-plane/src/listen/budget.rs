//! The memory that request bodies may take up together, reserved as they arrive.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use axum::{BoxError, body::Body, http::Request};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that are free. Clones are the same budget.
#[derive(Clone)]
pub(super) struct Budget(Arc<Semaphore>);

/// What one request has reserved; given back when it is dropped.
#[derive(Clone, Default)]
pub(super) struct Reserved(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    held: Option<OwnedSemaphorePermit>,
    exhausted: bool,
}

/// A body that reserves what it hands out.
struct Metered<B> {
    body: B,
    budget: Arc<Semaphore>,
    reserved: Reserved,
}

/// The budget is used up.
#[derive(Debug, thiserror::Error)]
#[error("too many requests are being read; retry")]
struct Exhausted;

/// What a chunk costs besides its bytes.
const OVERHEAD: usize = 64;

// === impl Budget ===

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// The request with a body that fails when the budget is used up.
    pub(super) fn meter<B>(&self, request: Request<B>) -> (Request<Body>, Reserved)
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let reserved = Reserved::default();
        let (budget, held) = (self.0.clone(), reserved.clone());
        let request = request.map(|body| {
            Body::new(Metered {
                body,
                budget,
                reserved: held,
            })
        });
        (request, reserved)
    }
}

// === impl Reserved ===

impl Reserved {
    /// Whether the request needed more than there was.
    pub(super) fn is_exhausted(&self) -> bool {
        self.lock().exhausted
    }

    fn reserve(&self, budget: &Arc<Semaphore>, bytes: usize) -> Result<(), Exhausted> {
        let mut state = self.lock();
        let bytes = u32::try_from(bytes).ok();
        let more = bytes.and_then(|bytes| budget.clone().try_acquire_many_owned(bytes).ok());
        let Some(more) = more else {
            state.exhausted = true;
            return Err(Exhausted);
        };
        match &mut state.held {
            Some(held) => held.merge(more),
            None => state.held = Some(more),
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Metered ===

impl<B> http_body::Body for Metered<B>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        let frame = frame.map(|frame| {
            let frame = frame.map_err(Into::into)?;
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            this.reserved.reserve(&this.budget, bytes + OVERHEAD)?;
            Ok(frame)
        });
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
