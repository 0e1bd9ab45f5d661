//! Runs kubectl.

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, process::Command};

use crate::{PATIENCE, process::text, tools::tool};

/// kubectl with the rights of a kubeconfig, in a namespace.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    namespace: String,
}

// === impl Kubectl ===

impl Kubectl {
    /// With a kubeconfig, in the namespace `default`.
    pub fn new(kubeconfig: &Path) -> Self {
        Self {
            program: tool("ASSENT_KUBECTL"),
            kubeconfig: kubeconfig.to_owned(),
            namespace: "default".to_owned(),
        }
    }

    /// The same in another namespace.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ..self.clone()
        }
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs it: what it wrote to its standard output.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> impl Future<Output = String> {
        self.must(args, "")
    }

    /// Runs it; an error is what it wrote.
    pub async fn attempt(&self, args: &[&str]) -> Result<String, String> {
        self.attempt_with(args, "").await
    }

    /// Applies manifests (YAML or JSON).
    #[track_caller]
    pub fn apply(&self, manifests: &str) -> impl Future<Output = String> {
        self.must(&["apply", "-f", "-"], manifests)
    }

    /// Applies manifests; an error is what kubectl wrote, such as a rejection.
    pub async fn try_apply(&self, manifests: &str) -> Result<String, String> {
        self.attempt_with(&["apply", "-f", "-"], manifests).await
    }

    /// The same without storing anything: admission is asked all the same.
    pub async fn try_dry_run(&self, manifests: &str) -> Result<String, String> {
        let args = ["apply", "--dry-run=server", "-f", "-"];
        self.attempt_with(&args, manifests).await
    }

    /// `kubectl get ARGS -o json`.
    pub async fn get(&self, args: &[&str]) -> Value {
        let object = self.try_get(args).await;
        object.unwrap_or_else(|e| panic!("kubectl get {}: {e}", args.join(" ")))
    }

    /// `kubectl get ARGS -o json`; an error is what it wrote, such as "not found".
    pub async fn try_get(&self, args: &[&str]) -> Result<Value, String> {
        let args = [&["get", "-o", "json"], args].concat();
        let object = self.attempt(&args).await?;
        serde_json::from_str(&object).map_err(|e| format!("{e}: {object}"))
    }

    /// Merges a patch into an object: `patch(&["pod", "a", "--subresource=status"], …)`.
    pub async fn patch(&self, args: &[&str], patch: &Value) -> String {
        let patch = patch.to_string();
        let args = [&["patch", "--type=merge", "-p", &patch], args].concat();
        self.run(&args).await
    }

    /// Waits until the object is there and `holds`.
    pub async fn wait(&self, args: &[&str], what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            match self.try_get(args).await {
                Ok(object) if holds(&object) => return object,
                last => assert!(
                    start.elapsed() < PATIENCE,
                    "waited for {} to be {what}, last seen: {last:#?}",
                    args.join(" ")
                ),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until the object is there.
    pub async fn wait_there(&self, args: &[&str]) -> Value {
        self.wait(args, "there", |_| true).await
    }

    /// Waits until the object is gone.
    pub async fn wait_gone(&self, args: &[&str]) {
        let start = Instant::now();
        loop {
            match self.try_get(args).await {
                Err(e) if e.contains("NotFound") => return,
                last => assert!(
                    start.elapsed() < PATIENCE,
                    "waited for {} to be gone, last seen: {last:#?}",
                    args.join(" ")
                ),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// A kubeconfig with the rights of a service account of this namespace, written into a
    /// directory: kubectl with it, in this namespace. Its token is bound to the account alone
    /// and lives for hours.
    pub async fn service_account(&self, name: &str, dir: &Path) -> Self {
        let token = self.run(&["create", "token", name, "--duration=8h"]).await;
        let mut config = self.config().await;
        config["users"][0]["user"] = json!({"token": token.trim()});
        let kubeconfig = dir.join(format!("{}-{name}.kubeconfig", self.namespace));
        std::fs::write(&kubeconfig, config.to_string()).expect("file must be written");
        Self {
            kubeconfig,
            ..self.clone()
        }
    }

    /// The kubeconfig as JSON, files and all else inside.
    async fn config(&self) -> Value {
        let view = ["config", "view", "--raw", "--flatten", "-o", "json"];
        let config = self.run(&view).await;
        serde_json::from_str(&config).expect("kubectl must write JSON")
    }

    #[track_caller]
    fn must(&self, args: &[&str], stdin: &str) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        async move {
            let output = self.attempt_with(args, stdin).await;
            output.unwrap_or_else(|e| panic!("{caller}: kubectl {}: {e}", args.join(" ")))
        }
    }

    async fn attempt_with(&self, args: &[&str], stdin: &str) -> Result<String, String> {
        let output = self.output(args, stdin).await;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(text(&output)),
        }
    }

    async fn output(&self, args: &[&str], stdin: &str) -> Output {
        let mut child = Command::new(&self.program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["--namespace", &self.namespace])
            .args(args)
            // What it learned about the kinds of one cluster is wrong for the next.
            .env("KUBECACHEDIR", self.kubeconfig.with_extension("cache"))
            .env("KUBERC", "off")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("kubectl must start");
        let mut input = child.stdin.take().expect("standard input must be piped");
        // A kubectl that ends without reading reports the reason.
        let _ = input.write_all(stdin.as_bytes()).await;
        drop(input);
        child.wait_with_output().await.expect("kubectl must end")
    }
}
