//! `assent-evaluator` as a process.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    eventually, http,
    process::{Process, print_log, program},
    up::{free_address, sample_of},
};

/// A running evaluator with a state directory of its own.
pub struct Evaluator {
    /// The process.
    pub process: Process,
    /// Where it answers reviews.
    pub listen: SocketAddr,
    /// Where it answers probes.
    pub admin: SocketAddr,
    id: String,
    discovery: String,
    args: Vec<String>,
    state: PathBuf,
    dir: tempfile::TempDir,
}

// === impl Evaluator ===

impl Evaluator {
    /// Starts one that follows `discovery`, a URL.
    pub async fn start(discovery: &str, id: &str) -> Self {
        Self::start_with(discovery, id, &[]).await
    }

    /// The same with more flags.
    pub async fn start_with(discovery: &str, id: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory must be made");
        let state = dir.path().join("state");
        Self::launch(dir, state, discovery, id, args).await
    }

    /// The same with its state somewhere else.
    pub async fn start_at(discovery: &str, id: &str, state: &Path) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory must be made");
        Self::launch(dir, state.to_owned(), discovery, id, &[]).await
    }

    async fn launch(
        dir: tempfile::TempDir,
        state: PathBuf,
        discovery: &str,
        id: &str,
        args: &[&str],
    ) -> Self {
        let (listen, admin) = (free_address(), free_address());
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        let command = command(discovery, id, listen, admin, &state, &args);
        let mut evaluator = Self {
            process: spawn(command, &dir),
            state,
            listen,
            admin,
            id: id.to_owned(),
            discovery: discovery.to_owned(),
            args,
            dir,
        };
        evaluator.wait_live().await;
        evaluator
    }

    /// Starts it again on the same state and addresses.
    pub async fn restart(&mut self) {
        self.process.kill();
        let Self {
            discovery,
            id,
            listen,
            admin,
            state,
            args,
            ..
        } = &*self;
        let command = command(discovery, id, *listen, *admin, state, args);
        self.process = spawn(command, &self.dir);
        self.wait_live().await;
    }

    /// Its state directory.
    pub fn state(&self) -> PathBuf {
        self.state.clone()
    }

    /// Waits until a set with this revision is on its disk.
    pub async fn wait_kept(&self, revision: &str) {
        let kept = async || {
            let set = fs::read(kept_set(&self.state)).unwrap_or_default();
            set.windows(revision.len())
                .any(|w| w == revision.as_bytes())
        };
        eventually(&format!("{revision} is on the disk of {}", self.id), kept).await;
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Whether it reports to be ready.
    pub async fn ready(&self) -> bool {
        let probe = http::request(&format!("http://{}/readyz", self.admin), None).await;
        probe.is_ok_and(|(code, _)| code == 200)
    }

    /// Waits until it is ready.
    pub async fn wait_ready(&self) {
        eventually(&format!("{} is ready", self.id), async || {
            self.ready().await
        })
        .await;
    }

    /// A review of a new pod on a path below `/validate/`: code and answer.
    pub async fn validate(&self, path: &str) -> (u16, Value) {
        let url = format!("http://{}/validate/{path}", self.listen);
        http::review(&url, &http::pod())
            .await
            .expect("reviews must be answered")
    }

    /// Its metrics.
    pub async fn metrics(&self) -> String {
        let answer = http::request(&format!("http://{}/metrics", self.admin), None).await;
        let (code, body) = answer.expect("/metrics must answer");
        assert_eq!(code, 200);
        String::from_utf8_lossy(&body).into_owned()
    }

    /// One sample of its metrics.
    pub async fn metric(&self, sample: &str) -> f64 {
        sample_of(&self.metrics().await, sample)
    }

    async fn wait_live(&mut self) {
        let url = format!("http://{}/livez", self.admin);
        let log = self.dir.path().join("log");
        let process = &mut self.process;
        eventually("the evaluator listens", async || {
            if let Some(status) = process.ended() {
                print_log("assent-evaluator", &log);
                panic!("assent-evaluator ended with {status}");
            }
            http::request(&url, None).await.is_ok()
        })
        .await;
    }
}

impl Drop for Evaluator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            print_log(&self.id, &self.dir.path().join("log"));
        }
    }
}

/// The revision that a decision names.
pub fn revision(answer: &Value) -> &str {
    let annotations = &answer["response"]["auditAnnotations"];
    let named = annotations
        .as_object()
        .and_then(|a| a.iter().find(|(k, _)| k.ends_with("revision")));
    named.and_then(|(_, v)| v.as_str()).unwrap_or_default()
}

/// The file of the last good set in a state directory.
pub fn kept_set(state: &Path) -> PathBuf {
    state.join("set")
}

fn command(
    discovery: &str,
    id: &str,
    listen: SocketAddr,
    admin: SocketAddr,
    state: &Path,
    args: &[String],
) -> Command {
    let mut command = Command::new(program("assent-evaluator"));
    command
        .args(["--discovery", discovery, "--id", id])
        .args(["--listen", &listen.to_string()])
        .args(["--admin-listen", &admin.to_string()])
        .args(["--drain-seconds", "0", "--ready-without-control-plane", "1"])
        .arg("--state")
        .arg(state)
        .args(args);
    command
}

fn spawn(mut command: Command, dir: &tempfile::TempDir) -> Process {
    Process::start(&mut command, &dir.path().join("log"))
}
