//! A namespace for one test.

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::atomic::{AtomicU32, Ordering},
};

use futures::FutureExt as _;

use super::{ApiServer, Kubectl, shared};

/// Runs a test in a namespace of its own on the shared API server, see [`with_temp_ns_on`].
pub async fn with_temp_ns(test: impl AsyncFnOnce(Kubectl)) {
    with_temp_ns_on(shared().await, test).await;
}

/// Runs a test in a namespace of its own. If it fails, what is there is printed: objects of
/// the namespace, Assent's objects, events, and what the servers said last. The namespace goes
/// afterwards.
pub async fn with_temp_ns_on(server: &ApiServer, test: impl AsyncFnOnce(Kubectl)) {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let name = format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let kubectl = server.kubectl.within(&name);
    kubectl.run(&["create", "namespace", &name]).await;
    // Pods are refused until the controllers have made it.
    kubectl.wait_there(&["serviceaccount", "default"]).await;
    let outcome = AssertUnwindSafe(test(kubectl.clone())).catch_unwind().await;
    if outcome.is_err() {
        dump(&kubectl).await;
        server.print_logs();
    }
    let gone = ["delete", "namespace", &name, "--wait=false"];
    let gone = kubectl.attempt(&gone).await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
    gone.expect("the namespace must be deleted");
}

/// What somebody looks at first.
const DUMPS: [&[&str]; 5] = [
    &["get", "all", "-o", "wide"],
    &["get", "pods", "-o", "yaml"],
    // Every kind of Assent's is in this category.
    &["get", "assent", "--all-namespaces", "-o", "yaml"],
    &[
        "get",
        "validatingwebhookconfigurations,mutatingwebhookconfigurations",
        "-o",
        "yaml",
    ],
    &[
        "get",
        "events",
        "--all-namespaces",
        "--sort-by=.lastTimestamp",
    ],
];

async fn dump(kubectl: &Kubectl) {
    for args in DUMPS {
        let output = kubectl.attempt(args).await;
        let output = output.unwrap_or_else(|e| e);
        let namespace = kubectl.namespace();
        eprintln!(
            "--- kubectl -n {namespace} {}\n{}",
            args.join(" "),
            output.trim_end()
        );
    }
}
