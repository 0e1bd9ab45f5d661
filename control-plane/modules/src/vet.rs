//! Trying a module out in a process of its own, before anything else loads it.
//!
//! A module may loop, hoard memory or bring down whoever compiles it. So it is
//! compiled, linked and asked about its settings in a child without environment, with
//! limits on memory and time; when the child dies, only that module is refused.

mod child;
mod frame;
mod limits;
mod report;

use std::{
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    sync::Semaphore,
};

pub use self::{
    child::child_main,
    report::{Accepted, Artefact, Facts, Refused, Stage, VetLimits, VetReport, VetRequest},
};
use self::{
    frame::{Frames, Order},
    limits::ProcessLimits,
};
use crate::store::MAX_ARTEFACT_BYTES;

/// The contract's time for compiling, kept for everything but the guest's own calls.
const COMPILE: Duration = Duration::from_secs(30);

/// Compiling takes many times a module's size, and allocators reserve up to 1 GiB
/// ahead; a module that needs more would take the control plane's pod down.
const MEMORY_BYTES: u64 = 2 << 30;

/// The guest is called twice: for its settings, and for the self-test.
const GUEST_CALLS: u32 = 2;

/// What a dying child says: a panic message fits.
const LAST_WORDS: u64 = 4 << 10;

/// Runs vetting children, few at a time.
#[derive(Clone, Debug)]
pub struct Vetter {
    exe: PathBuf,
    args: Vec<String>,
    bounds: Bounds,
    turns: Arc<Semaphore>,
}

/// What vetting may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// For everything but the guest's own calls, which have their own deadline.
    pub deadline: Duration,
    /// Memory of the child (`RLIMIT_DATA`).
    pub memory_bytes: u64,
    /// Children at once. Compiling takes every core it gets, and the cores are also
    /// there to serve.
    pub concurrency: usize,
}

/// Why vetting could not be done. It says nothing about the module: try again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program is not there, or the system has no room for a process.
    #[error("failed to start {} to vet a module: {source}", exe.display())]
    Start {
        /// The program.
        exe: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The child can't be watched.
    #[error("failed to wait for the process that vets a module: {0}")]
    Wait(io::Error),
    /// The child could not do its work, through no fault of the module.
    #[error("failed to vet a module: {0}")]
    Child(String),
    /// The program is not the one that was expected.
    #[error("failed to read the report of {}: {why}; is it of the same version?", exe.display())]
    Report {
        /// The program.
        exe: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// What a child left behind.
struct Ended {
    status: ExitStatus,
    out: Vec<u8>,
    err: Vec<u8>,
}

// === impl Vetter ===

impl Vetter {
    /// Vets by running `exe` with `args`, which must call [`child_main`].
    pub fn new(exe: PathBuf, args: Vec<String>) -> Self {
        Self {
            exe,
            args,
            bounds: Bounds::default(),
            turns: Arc::new(Semaphore::new(Bounds::default().concurrency)),
        }
    }

    /// Other bounds than the default ones.
    #[must_use]
    pub fn with_bounds(self, bounds: Bounds) -> Self {
        Self {
            bounds,
            turns: Arc::new(Semaphore::new(bounds.concurrency.max(1))),
            ..self
        }
    }

    /// Tries `module` out, once it is its turn. Dropping the future ends the child.
    pub async fn vet(&self, module: Bytes, request: &VetRequest) -> Result<VetReport, Error> {
        let _turn = self
            .turns
            .acquire()
            .await
            .expect("the semaphore must never be closed");
        let deadline = self.bounds.deadline + GUEST_CALLS * request.limits.timeout();
        let input = frame::order(&Order {
            limits: ProcessLimits::new(self.bounds.memory_bytes, deadline),
            request: request.clone(),
        });
        let mut child = self.start()?;
        match tokio::time::timeout(deadline, talk(&mut child, &input, &module)).await {
            Ok(ended) => self.read(ended.map_err(Error::Wait)?),
            Err(_) => {
                child.kill().await.map_err(Error::Wait)?;
                let seconds = deadline.as_secs_f32();
                Ok(crashed(format!("it was not done after {seconds} s")))
            }
        }
    }

    fn start(&self) -> Result<Child, Error> {
        Command::new(&self.exe)
            .args(&self.args)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| Error::Start {
                exe: self.exe.clone(),
                source,
            })
    }

    fn read(&self, ended: Ended) -> Result<VetReport, Error> {
        let words = String::from_utf8_lossy(&ended.err);
        if ended.status.code() == Some(child::UNABLE.into()) {
            return Err(Error::Child(words.trim().to_owned()));
        }
        if !ended.status.success() {
            tracing::warn!(status = %ended.status, %words, "a process that vetted a module ended badly");
            return Ok(crashed(format!("the process ended with {}", ended.status)));
        }
        Frames::read(ended.out.into()).map_err(|why| Error::Report {
            exe: self.exe.clone(),
            why,
        })
    }
}

// === impl Bounds ===

impl Default for Bounds {
    fn default() -> Self {
        Self {
            deadline: COMPILE,
            memory_bytes: MEMORY_BYTES,
            concurrency: 1,
        }
    }
}

/// Gives the child its work and takes what it says, all at once: each of the pipes
/// may fill while another is waited for.
async fn talk(child: &mut Child, order: &[u8], module: &[u8]) -> io::Result<Ended> {
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let write = async {
        if let Some(mut stdin) = stdin {
            // A child that does not read to the end says why in its report, or dies.
            let _ = stdin.write_all(order).await;
            let _ = stdin.write_all(module).await;
        }
    };
    let most = (MAX_ARTEFACT_BYTES + frame::OVERHEAD) as u64;
    let ((), out, err) = tokio::join!(write, gather(stdout, most), gather(stderr, LAST_WORDS));
    Ok(Ended {
        status: child.wait().await?,
        out: out?,
        err: err?,
    })
}

/// The first `most` bytes; what follows is read, so that the child goes on, and dropped.
async fn gather(pipe: Option<impl AsyncRead + Unpin>, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        (&mut pipe).take(most).read_to_end(&mut bytes).await?;
        tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    }
    Ok(bytes)
}

fn crashed(why: String) -> VetReport {
    VetReport::Refused(Refused {
        stage: Stage::Crashed,
        message: format!("crashed while being vetted: {why}"),
    })
}
