//! The deadlines of one stream.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tonic::Status;

use crate::{
    hub::{Config, not_synced},
    pipe::Pipe,
};

/// Messages that are read from one client per second. A client answers a response once or twice,
/// and there are at most 20 responses per second. Further messages wait.
const MESSAGES_PER_SECOND: u32 = 1_000;

/// How long a client that does not read may take to read the end of its stream.
const STALLED_LEAVE: Duration = Duration::from_secs(1);

/// How long a stream lives on each time that its client could not open another one.
const EXTENSION: Duration = Duration::from_secs(60);

/// How long a stream may outlive its credential in this way: longer than most outages, and an end
/// to what a stolen token is good for.
const MAX_EXTENSION: Duration = Duration::from_secs(60 * 60);

/// Deadlines and rates of a stream.
#[derive(Debug)]
pub(super) struct Timing {
    /// The deadline for the first snapshot; `None` once it was published.
    sync: Option<Instant>,
    /// When the stream has reached its age; none while it is being found out whether its client
    /// could open another one.
    age: Option<Instant>,
    /// How far its age may be extended.
    latest_age: Option<Instant>,
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
        let left = expires.map(|at| at.duration_since(SystemTime::now()).unwrap_or_default());
        if let Some(left) = left {
            age = age.min(left);
        }
        Self {
            sync: Some(now + config.sync_deadline),
            age: Some(now + age),
            latest_age: left.map(|left| now + left + MAX_EXTENSION),
            send_limit: config.send_deadline,
            silence_limit: config.health_interval * 3,
            messages: 0,
            window: now,
        }
    }

    /// The first snapshot was published.
    pub(super) fn synced(&mut self) {
        self.sync = None;
    }

    pub(super) fn is_synced(&self) -> bool {
        self.sync.is_none()
    }

    /// Counts a message. True if no more are read in this second.
    pub(super) fn read(&mut self) -> bool {
        let now = Instant::now();
        if now.duration_since(self.window) >= Duration::from_secs(1) {
            self.window = now;
            self.messages = 0;
        }
        self.messages += 1;
        self.messages == MESSAGES_PER_SECOND
    }

    /// Whether another message is read in this second.
    pub(super) fn may_read(&self) -> bool {
        self.messages < MESSAGES_PER_SECOND || self.window.elapsed() >= Duration::from_secs(1)
    }

    /// The next deadline.
    pub(super) fn next(&self, pipe: &Pipe) -> Instant {
        let refill = (!self.may_read()).then(|| self.window + Duration::from_secs(1));
        let send = pipe.send_deadline(self.send_limit);
        let times = [self.age, self.sync, refill, send, self.silence(pipe)];
        let next = times.into_iter().flatten().min();
        // Without any of these the stream waits for something else that will happen.
        next.unwrap_or_else(|| Instant::now() + EXTENSION)
    }

    /// Whether the stream has reached its age; true once, until it is extended.
    pub(super) fn reach_age(&mut self, now: Instant) -> bool {
        self.age.take_if(|age| *age <= now).is_some()
    }

    /// Lets the stream live on for a while; false if its credential has ended for too long.
    pub(super) fn extend_age(&mut self) -> bool {
        let now = Instant::now();
        let more = EXTENSION.mul_f64(0.8 + 0.4 * rand::random::<f64>());
        let extends = self.latest_age.is_none_or(|latest| now < latest);
        if extends {
            self.age = Some(now + more);
        }
        extends
    }

    /// How the stream ends, if one of its deadlines has passed.
    pub(super) fn due(&self, pipe: &Pipe, now: Instant) -> Option<Status> {
        let over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if over(pipe.send_deadline(self.send_limit)) {
            let text = "the client does not read: connect again and read on";
            return Some(Status::resource_exhausted(text));
        }
        if over(self.sync) {
            return Some(not_synced());
        }
        over(self.silence(pipe))
            .then(|| Status::deadline_exceeded("no health check came for three intervals"))
    }

    /// How long the client may take to read the end.
    pub(super) fn leave(&self) -> Duration {
        self.send_limit.min(STALLED_LEAVE)
    }

    fn silence(&self, pipe: &Pipe) -> Option<Instant> {
        pipe.last_heard().map(|at| at + self.silence_limit)
    }
}
