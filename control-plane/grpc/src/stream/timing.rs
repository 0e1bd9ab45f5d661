//! The times of one stream.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tonic::Status;

use crate::{
    hub::{Config, not_synced},
    pipe::Pipe,
};

/// Messages that one client may send in a second. It answers a response once or twice, and
/// there are at most 20 a second: whoever exceeds this is read more slowly.
const MESSAGES_PER_SECOND: u32 = 1_000;

/// A client that does not read is given this long to take at least the end.
const STALLED_LEAVE: Duration = Duration::from_secs(1);

/// When things are due.
#[derive(Debug)]
pub(super) struct Timing {
    /// When the first snapshot must be there; none once it is.
    sync: Option<Instant>,
    age: Instant,
    send_limit: Duration,
    silence_limit: Duration,
    messages: u32,
    window: Instant,
}

// === impl Timing ===

impl Timing {
    pub(super) fn new(config: &Config, expires: Option<SystemTime>) -> Self {
        let now = Instant::now();
        let mut age = config
            .max_stream_age
            .mul_f64(0.8 + 0.4 * rand::random::<f64>());
        if let Some(expires) = expires {
            let left = expires
                .duration_since(SystemTime::now())
                .unwrap_or_default();
            age = age.min(left);
        }
        Self {
            sync: Some(now + config.sync_deadline),
            age: now + age,
            send_limit: config.send_deadline,
            silence_limit: config.health_interval * 3,
            messages: 0,
            window: now,
        }
    }

    /// The first snapshot is there.
    pub(super) fn synced(&mut self) {
        self.sync = None;
    }

    pub(super) fn is_synced(&self) -> bool {
        self.sync.is_none()
    }

    /// A message was read. True where no more are read in this second.
    pub(super) fn read(&mut self) -> bool {
        let now = Instant::now();
        if now.duration_since(self.window) >= Duration::from_secs(1) {
            self.window = now;
            self.messages = 0;
        }
        self.messages += 1;
        self.messages == MESSAGES_PER_SECOND
    }

    /// Whether the client has not used up this second.
    pub(super) fn may_read(&self) -> bool {
        self.messages < MESSAGES_PER_SECOND || self.window.elapsed() >= Duration::from_secs(1)
    }

    /// When to look again at the latest.
    pub(super) fn next(&self, pipe: &Pipe) -> Instant {
        let refill = (!self.may_read()).then(|| self.window + Duration::from_secs(1));
        let send = pipe.send_deadline(self.send_limit);
        let times = [self.sync, refill, send, self.silence(pipe)];
        times.into_iter().flatten().fold(self.age, Instant::min)
    }

    /// How the stream ends where one of its times is over.
    pub(super) fn due(&self, pipe: &Pipe, now: Instant) -> Option<Status> {
        let over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if over(pipe.send_deadline(self.send_limit)) {
            let text = "the client does not read: connect again and read on";
            return Some(Status::resource_exhausted(text));
        }
        if over(self.sync) {
            return Some(not_synced());
        }
        if over(self.silence(pipe)) {
            return Some(Status::deadline_exceeded(
                "no health check came for three intervals",
            ));
        }
        over(Some(self.age)).then(|| Status::ok("the stream has reached its age: connect again"))
    }

    /// How long the client may take to notice the end.
    pub(super) fn leave(&self) -> Duration {
        self.send_limit.min(STALLED_LEAVE)
    }

    fn silence(&self, pipe: &Pipe) -> Option<Instant> {
        pipe.last_heard().map(|at| at + self.silence_limit)
    }
}
