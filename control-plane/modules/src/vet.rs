//! Tries a module out in a process of its own, before anything else loads it.
//!
//! A module may loop, exhaust memory or crash the process that compiles it. Therefore it
//! is compiled, linked and asked about its settings in a child process without environment,
//! files, network and privileges, with limits on memory and processor time; if the child
//! dies, only that module is refused.

mod cage;
mod child;
mod frame;
mod limits;
mod report;
mod system;
mod text;

use std::{
    io,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use rustix::process::Signal;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    sync::Semaphore,
};

pub use self::{
    cage::{Confinement, Enforcement, confine},
    child::{child_main, report_main},
    report::{Artefact, Compiled, Facts, Refused, Stage, VetLimits, VetReport, VetRequest},
    system::System,
};
use self::{
    frame::{Frames, Order, Task},
    limits::ProcessLimits,
};
use crate::store::MAX_ARTEFACT_BYTES;

/// Processor time for everything but the guest's own calls. A module of 27 MiB takes about
/// 25 s on all cores together; this is enough for the largest one on a machine of a third
/// of that speed.
const CPU_TIME: Duration = Duration::from_secs(180);

/// Ends a child that hangs without using the processor. Long, because how fast the clock on
/// the wall goes compared to processor time depends on everything else on the machine.
const DEADLINE: Duration = Duration::from_secs(20 * 60);

/// Compiling takes many times a module's size, and allocators reserve up to 1 GiB ahead. In
/// a container the caller takes what its limit leaves ([`Vetter::with_memory`]).
const MEMORY_BYTES: u64 = 2 << 30;

/// The user and group `nobody` of every distribution: they own nothing.
const NOBODY: u32 = 65534;

/// The guest is called twice: for its settings, and for the self-test.
const GUEST_CALLS: u32 = 2;

/// How much of a child's standard error is kept: a panic message fits.
const MAX_STDERR_BYTES: u64 = 4 << 10;

/// Runs vetting children, a few at a time.
#[derive(Clone, Debug)]
pub struct Vetter {
    exe: PathBuf,
    args: Vec<String>,
    bounds: Bounds,
    turns: Arc<Semaphore>,
    interpreters: text::Interpreters,
}

/// The resources that vetting one module may use.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Processor time (`RLIMIT_CPU`) for everything but the guest's own calls, which have
    /// their own deadline.
    pub cpu_time: Duration,
    /// Wall-clock time, likewise.
    pub deadline: Duration,
    /// Memory of the child (`RLIMIT_DATA`).
    pub memory_bytes: u64,
    /// Concurrent children. Compiling uses every core it gets, and serving needs them too.
    pub concurrency: usize,
}

/// Why vetting failed for a reason other than the module. A retry may succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program is missing, or the system can not start a process.
    #[error("failed to start {} to vet a module: {source}", exe.display())]
    Start {
        /// The program.
        exe: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Waiting for the child failed.
    #[error("failed to wait for the process that vets a module: {0}")]
    Wait(io::Error),
    /// The child failed for a reason other than the module.
    #[error("failed to vet a module: {0}")]
    Child(String),
    /// The program is not a vetting child of this version.
    #[error("failed to read the report of {}: {why}; is it of the same version?", exe.display())]
    Report {
        /// The program.
        exe: PathBuf,
        /// The reason.
        why: String,
    },
}

/// The exit status and output of a child.
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
            interpreters: text::Interpreters::default(),
        }
    }

    /// Replaces the default bounds.
    #[must_use]
    pub fn with_bounds(self, bounds: Bounds) -> Self {
        Self {
            bounds,
            turns: Arc::new(Semaphore::new(bounds.concurrency.max(1))),
            ..self
        }
    }

    /// Starts a child that reports how it is confined on this system, and its engine.
    pub async fn probe(&self) -> Result<System, Error> {
        let mut child = self.start(&["--report"])?;
        let ended = tokio::time::timeout(self.bounds.deadline, talk(&mut child, &[], &[])).await;
        let ended = ended.map_err(|_| Error::Child("it did not end".to_owned()))?;
        let ended = ended.map_err(Error::Wait)?;
        if !ended.status.success() {
            let stderr = String::from_utf8_lossy(&ended.err).trim().to_owned();
            return Err(Error::Child(format!("{stderr} ({})", ended.status)));
        }
        serde_json::from_slice(&ended.out).map_err(|why| Error::Report {
            exe: self.exe.clone(),
            why: why.to_string(),
        })
    }

    /// The same children with other memory, taking turns with those of `self`.
    #[must_use]
    pub fn with_memory(&self, memory_bytes: u64) -> Self {
        let mut vetter = self.clone();
        vetter.bounds.memory_bytes = memory_bytes;
        vetter
    }

    /// Memory of a child.
    pub fn memory_bytes(&self) -> u64 {
        self.bounds.memory_bytes
    }

    /// How many children run at once.
    pub fn concurrency(&self) -> usize {
        self.bounds.concurrency.max(1)
    }

    /// Compiles `module` and tries it out, once a child may run. Dropping the future ends
    /// the child.
    pub async fn vet(&self, module: Bytes, request: &VetRequest) -> Result<VetReport, Error> {
        let task = Task::Vet(request.clone());
        let guest = GUEST_CALLS * request.limits.timeout();
        self.run(&module, task, guest, Frames::report).await
    }

    /// Like [`Vetter::vet`], with the artefact of an earlier vetting of the module instead of
    /// the module: nothing is compiled, and the report has no artefact. An artefact that
    /// does not load is an error, because that is not the module's fault.
    pub async fn vet_compiled(
        &self,
        artefact: Bytes,
        request: &VetRequest,
    ) -> Result<VetReport, Error> {
        let task = Task::VetCompiled(request.clone());
        let guest = GUEST_CALLS * request.limits.timeout();
        self.run(&artefact, task, guest, Frames::report).await
    }

    /// Has a child do something with `code`, once it may run. `guest` is the time that guests may take.
    async fn run<T: From<Refused>>(
        &self,
        code: &[u8],
        task: Task,
        guest: Duration,
        read: impl FnOnce(Frames) -> Result<T, String>,
    ) -> Result<T, Error> {
        let _turn = self
            .turns
            .acquire()
            .await
            .expect("the semaphore must never be closed");
        let cpu_time = self.bounds.cpu_time + guest;
        let deadline = self.bounds.deadline + guest;
        let input = frame::order(&Order {
            limits: ProcessLimits::new(self.bounds.memory_bytes, cpu_time),
            task,
        });
        let mut child = self.start(&[])?;
        match tokio::time::timeout(deadline, talk(&mut child, &input, code)).await {
            Ok(ended) => match self.read(ended.map_err(Error::Wait)?, cpu_time)? {
                Ok(frames) => read(frames).map_err(|why| self.unreadable(why)),
                Err(refused) => Ok(refused.into()),
            },
            Err(_) => {
                child.kill().await.map_err(Error::Wait)?;
                let seconds = deadline.as_secs_f32();
                Ok(timed_out(format!("it was not done after {seconds} s")).into())
            }
        }
    }

    fn start(&self, more_args: &[&str]) -> Result<Child, Error> {
        let mut command = self.command(more_args);
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let started = command.spawn().or_else(|error| match error.kind() {
            // That user may not exist in this user namespace, or may not execute the program.
            io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput => {
                self.command(more_args).spawn()
            }
            _ => Err(error),
        });
        started.map_err(|source| Error::Start {
            exe: self.exe.clone(),
            source,
        })
    }

    fn command(&self, more_args: &[&str]) -> Command {
        let mut command = Command::new(&self.exe);
        command
            .args(&self.args)
            .args(more_args)
            .env_clear()
            // The allocator of Assent's programs would map a gigabyte at its start, which counts as
            // data, and is more than a container of the default size leaves for a child.
            .env("MIMALLOC_ARENA_EAGER_COMMIT", "0")
            .current_dir("/")
            // A signal to the group of the control plane, such as Ctrl-C, is for it to handle.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// What a child wrote, or how it ended instead.
    fn read(&self, ended: Ended, cpu_time: Duration) -> Result<Result<Frames, Refused>, Error> {
        let stderr = String::from_utf8_lossy(&ended.err);
        if ended.status.code() == Some(child::UNABLE.into()) {
            return Err(Error::Child(stderr.trim().to_owned()));
        }
        if ended.status.signal() == Some(Signal::XCPU.as_raw()) {
            let seconds = cpu_time.as_secs_f32();
            return Ok(Err(timed_out(format!(
                "it used more than {seconds} s of processor time"
            ))));
        }
        if !ended.status.success() {
            tracing::warn!(status = %ended.status, %stderr, "a process that vets a module crashed");
            let memory_mib = self.bounds.memory_bytes >> 20;
            return Ok(Err(crashed(format!(
                "the process ended with {}; it may use {memory_mib} MiB of memory",
                ended.status
            ))));
        }
        let frames = Frames::read(ended.out.into());
        frames.map(Ok).map_err(|why| self.unreadable(why))
    }

    fn unreadable(&self, why: String) -> Error {
        Error::Report {
            exe: self.exe.clone(),
            why,
        }
    }
}

// === impl Bounds ===

impl Default for Bounds {
    fn default() -> Self {
        Self {
            cpu_time: CPU_TIME,
            deadline: DEADLINE,
            memory_bytes: MEMORY_BYTES,
            concurrency: 1,
        }
    }
}

/// Writes the input of the child and reads its output at the same time: each of the pipes
/// may fill up while another one is waited for.
async fn talk(child: &mut Child, order: &[u8], module: &[u8]) -> io::Result<Ended> {
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let write = async {
        if let Some(mut stdin) = stdin {
            // A child that does not read to the end reports why, or dies.
            let _ = stdin.write_all(order).await;
            let _ = stdin.write_all(module).await;
        }
    };
    let most = (MAX_ARTEFACT_BYTES + frame::OVERHEAD) as u64;
    let ((), out, err) = tokio::join!(
        write,
        gather(stdout, most),
        gather(stderr, MAX_STDERR_BYTES)
    );
    Ok(Ended {
        status: child.wait().await?,
        out: out?,
        err: err?,
    })
}

/// The first `most` bytes. The rest is read, so that the child is not blocked, and dropped.
async fn gather(pipe: Option<impl AsyncRead + Unpin>, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        (&mut pipe).take(most).read_to_end(&mut bytes).await?;
        tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    }
    Ok(bytes)
}

fn crashed(why: String) -> Refused {
    Refused {
        stage: Stage::Crashed,
        message: format!("crashed while being vetted: {why}"),
    }
}

fn timed_out(why: String) -> Refused {
    Refused {
        stage: Stage::TimedOut,
        message: format!("took too long to vet: {why}"),
    }
}

impl From<Refused> for VetReport {
    fn from(refused: Refused) -> Self {
        Self::Refused {
            refused,
            compiled: None,
        }
    }
}
