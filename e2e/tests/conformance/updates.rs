//! R19, R20, R22, R25, R43: when updates are sent.

use std::time::{Duration, Instant};

use assent_e2e::{
    Workspace,
    hash::{Held, digest},
};
use assent_proto::v1::{
    self, FetchModuleRequest, RouteState, StatModulesRequest,
    module_service_client::ModuleServiceClient,
};
use tonic::transport::Channel;

#[tokio::test]
async fn r19_changes_collapse_while_a_response_is_outstanding() {
    let workspace = Workspace::with_policy("r19").await;
    let mut stream = workspace.connect("a").await;
    let first = stream.next().await;
    for policy in ["b", "c", "d"] {
        workspace.apply(policy, "{}").await;
    }
    workspace.apply("a", "{n: 2}").await;
    stream.silent().await;
    stream.ack(&first).await;
    let response = stream.next().await;
    let sent: Vec<_> = response
        .policies
        .iter()
        .map(|p| (p.policy.as_str(), p.generation))
        .collect();
    assert_eq!(sent.len(), 4, "{sent:?}");
    assert!(sent.contains(&(&workspace.key("a"), 2)));
    assert_eq!(
        response.version_info,
        workspace.up.fetch("r19").await.unwrap().version_info
    );
    stream.silent().await;
}

#[tokio::test]
async fn r20_invalid_file_removes_nothing() {
    let workspace = Workspace::with_policy("r20").await;
    let mut stream = workspace.settled("a").await;
    let name = workspace.name("a");
    workspace.up.write(&format!("{name}.yaml"), "kind: [");
    let broken =
        |o: &serde_json::Value| assent_e2e::up::condition(o, "Accepted")["status"] == "False";
    workspace.up.wait(&name, "refused", broken).await;
    stream.silent().await;
    let set = workspace.up.fetch("r20").await.unwrap();
    assert_eq!(set.routes[0].state(), RouteState::Active);
}

#[tokio::test]
async fn r22_reverted_change_within_the_window_sends_nothing() {
    let workspace = Workspace::with_policy("r22").await;
    let mut stream = workspace.settled("a").await;
    let (name, file) = (workspace.name("a"), format!("{}.yaml", workspace.name("a")));
    let (now, other) = (
        workspace.manifest("a"),
        workspace.manifest("a").settings("{n: 2}"),
    );
    let start = Instant::now();
    workspace.up.write(&file, other.to_string());
    workspace.up.write(&file, now.to_string());
    // On a machine that stood still in between it was not inside the window.
    if start.elapsed() < Duration::from_millis(50) {
        stream.silent().await;
        let object = workspace.up.policy(&name).await.unwrap();
        assert_eq!(object["metadata"]["generation"], 1);
    }
}

#[tokio::test]
async fn r22_rewriting_equal_content_makes_no_version() {
    let workspace = Workspace::with_policy("r22b").await;
    let mut stream = workspace.settled("a").await;
    let file = format!("{}.yaml", workspace.name("a"));
    let manifest = workspace.manifest("a").to_string();
    // Other bytes, the same object: a comment, and keys in another order.
    workspace
        .up
        .write(&file, format!("# a comment\n{manifest}"));
    stream.silent().await;
    let (head, spec) = manifest.split_once("spec:\n").unwrap();
    let head = head.replace("kind: ClusterAdmissionPolicy\n", "");
    workspace.up.write(
        &file,
        format!("spec:\n{spec}{head}kind: ClusterAdmissionPolicy\n"),
    );
    stream.silent().await;
    assert_eq!(
        workspace.up.policy(&workspace.name("a")).await.unwrap()["metadata"]["generation"],
        1
    );
}

#[tokio::test]
async fn r22_simultaneous_removals_are_sent_together() {
    let workspace = Workspace::with_policy("r22c").await;
    let mut stream = workspace.settled("a").await;
    let manifests = ["b", "c", "d"].map(|p| workspace.manifest(p).to_string());
    workspace
        .up
        .write("r22c-many.yaml", manifests.join("---\n"));
    let all = |held: &Held| {
        held.routes.len() == 4
            && held
                .routes
                .values()
                .all(|r| r.state() == RouteState::Active)
    };
    stream.follow(all).await;
    workspace.up.remove("r22c-many.yaml");
    let mut responses = 0;
    while stream.held().revisions.len() > 1 {
        let response = stream.next().await;
        stream.ack(&response).await;
        responses += usize::from(!response.removed_revisions.is_empty());
    }
    // The first may go out at once; whatever follows it goes out together.
    assert!(responses <= 2, "{responses} responses for three policies");
}

#[tokio::test]
async fn r25_digest_is_announced_when_its_module_is_available() {
    let workspace = Workspace::new("r25").await;
    let mut stream = workspace.connect("a").await;
    let empty = stream.next().await;
    stream.ack(&empty).await;
    let wasm = assent_e2e::module::accept_all("r25");
    workspace.up.write("r25.wasm", &wasm);
    workspace
        .up
        .apply("r25-a", &workspace.manifest("a").module("r25.wasm"));
    let response = stream.next().await;
    let policy = &response.policies[0];
    assert_eq!(policy.module_digest, digest(&wasm));
    assert_eq!(policy.module_size, wasm.len() as u64);
    let mut modules = ModuleServiceClient::new(workspace.channel().await);
    let request = StatModulesRequest {
        digests: vec![policy.module_digest.clone()],
        ..StatModulesRequest::default()
    };
    let stat = modules.stat_modules(request).await.unwrap().into_inner();
    assert!(stat.modules[0].present);
    assert_eq!(stat.modules[0].size, wasm.len() as u64);
    assert_eq!(fetch(&mut modules, &policy.module_digest).await, wasm);
    // The file may go: the module is kept, and nothing is removed.
    workspace.up.remove("r25.wasm");
    stream.ack(&response).await;
    stream.follow_active(&workspace.key("a"), 1).await;
    stream.silent().await;
    assert_eq!(fetch(&mut modules, &policy.module_digest).await, wasm);
}

#[tokio::test]
async fn r25_changed_module_file_is_a_new_generation() {
    let workspace = Workspace::new("r25b").await;
    let name = workspace.name("a");
    workspace
        .up
        .write("r25b.wasm", assent_e2e::module::accept_all("one"));
    workspace
        .up
        .apply(&name, &workspace.manifest("a").module("r25b.wasm"));
    let mut stream = workspace.settled("a").await;
    let two = assent_e2e::module::accept_all("two");
    workspace.up.write("r25b.wasm", &two);
    let response = stream.next().await;
    let policy: &v1::Policy = &response.policies[0];
    assert_eq!(
        (policy.generation, &policy.module_digest),
        (2, &digest(&two))
    );
}

async fn fetch(modules: &mut ModuleServiceClient<Channel>, digest: &str) -> Vec<u8> {
    let request = FetchModuleRequest {
        digest: digest.into(),
        ..FetchModuleRequest::default()
    };
    let mut chunks = modules.fetch_module(request).await.unwrap().into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        assert_eq!(chunk.offset, bytes.len() as u64);
        bytes.extend(chunk.data);
    }
    bytes
}

#[tokio::test]
async fn r43_deleted_policy_is_retired_and_leaves_after_its_drain() {
    let workspace = Workspace::with_policy("r43a").await;
    let mut stream = workspace.settled("a").await;
    workspace.apply("a", "{n: 2}").await;
    let offered = stream.next().await;
    let candidate = offered.policies[0].revision.clone();
    stream.reject(&offered, &[&candidate]).await;
    workspace.delete("a");
    let retired = stream.next().await;
    // Nothing points at it, so that the candidate leaves and the active revision drains.
    assert_eq!(retired.removed_revisions, [candidate.as_str()]);
    assert_eq!(retired.removed_routes, [candidate.as_str()]);
    let [route] = retired.routes.as_slice() else {
        panic!("one route must be left: {retired:?}");
    };
    assert_eq!(route.state(), RouteState::Retired);
    stream.ack(&retired).await;
    let removed = stream.next().await;
    assert_eq!(removed.removed_routes, [route.path.as_str()]);
    assert!(removed.routes.is_empty(), "{removed:?}");
}

#[tokio::test]
async fn r43_candidate_that_was_never_active_leaves_at_once() {
    let workspace = Workspace::with_policy("r43b").await;
    let mut stream = workspace.connect("a").await;
    let offered = stream.next().await;
    let candidate = offered.policies[0].revision.clone();
    assert_eq!(offered.routes[0].state(), RouteState::Candidate);
    stream.reject(&offered, &[&candidate]).await;
    workspace.delete("a");
    let removed = stream.next().await;
    assert_eq!(removed.removed_revisions, [candidate.as_str()]);
    assert_eq!(removed.removed_routes, [candidate.as_str()]);
    assert!(removed.routes.is_empty(), "{removed:?}");
}
