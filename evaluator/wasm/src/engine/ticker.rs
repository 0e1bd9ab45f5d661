//! The clock of the engine: a thread that moves the epoch on, so that guests notice their deadline.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::Duration,
};

use wasmtime::EngineWeak;

/// Guests look at the clock at every tick: a deadline is noticed at most this much late.
pub(crate) const TICK: Duration = Duration::from_millis(5);

/// Ticks without any guest after which the thread sleeps: an idle process should not wake up, a busy one
/// should not pay for waking the thread at every call.
const IDLE_TICKS: u32 = 200;

pub(super) struct Ticker {
    state: Arc<State>,
    thread: Thread,
    handle: Option<JoinHandle<()>>,
}

/// While one of these lives, the clock runs.
pub(crate) struct Running<'a>(&'a State);

#[derive(Default)]
struct State {
    running: AtomicUsize,
    /// Set by every guest that starts, cleared by every tick.
    used: AtomicBool,
    asleep: AtomicBool,
    stopped: AtomicBool,
}

// === impl Ticker ===

impl Ticker {
    pub(super) fn start(engine: EngineWeak) -> io::Result<Self> {
        let state = Arc::new(State::default());
        let shared = state.clone();
        let handle = thread::Builder::new()
            .name("wasm-ticker".to_owned())
            .spawn(move || shared.run(&engine))?;
        Ok(Self {
            state,
            thread: handle.thread().clone(),
            handle: Some(handle),
        })
    }

    /// Says that a guest is about to run.
    pub(super) fn guest(&self) -> Running<'_> {
        self.state.running.fetch_add(1, Ordering::SeqCst);
        self.state.used.store(true, Ordering::Relaxed);
        if self.state.asleep.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        Running(&self.state)
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::SeqCst);
        self.thread.unpark();
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

// === impl Running ===

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

// === impl State ===

impl State {
    fn run(&self, engine: &EngineWeak) {
        let mut idle = 0;
        while !self.stopped.load(Ordering::SeqCst) {
            let Some(engine) = engine.upgrade() else {
                return;
            };
            engine.increment_epoch();
            drop(engine);
            let used =
                self.used.swap(false, Ordering::Relaxed) || self.running.load(Ordering::SeqCst) > 0;
            idle = if used { 0 } else { idle + 1 };
            if idle < IDLE_TICKS {
                thread::sleep(TICK);
            } else {
                self.sleep();
                idle = 0;
            }
        }
    }

    /// Waits for the next guest. `asleep` is set before `running` is read, and `guest` writes `running`
    /// before it reads `asleep`: one of the two sees the other.
    fn sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        while self.running.load(Ordering::SeqCst) == 0 && !self.stopped.load(Ordering::SeqCst) {
            thread::park();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}
