//! Leader election, certificates and identities with a real API server.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use assent_e2e::{
    eventually,
    kube::{Kubectl, with_temp_ns},
};
use assent_k8s::{
    certificates::{CaManager, Lives, Mode, publish_bundle},
    identity::{Credential, Error, Identity, Live, TokenChecker, Verb},
    lease::{Elector, Leader, LeaderCheck, Role, Timing},
    names,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::client;

/// An elector in a thread of its own, as a process is.
struct Contender {
    role: watch::Receiver<Role>,
    leader_check: LeaderCheck,
    shutdown: CancellationToken,
    runtime: tokio::runtime::Handle,
}

/// Short, and in the same proportions as the real ones.
const TIMING: Timing = Timing {
    lease: Duration::from_millis(3_000),
    renew: Duration::from_millis(2_000),
    retry: Duration::from_millis(400),
};

impl Contender {
    async fn start(ns: &Kubectl, name: &str) -> Self {
        let (kubeconfig, namespace) = (ns.kubeconfig().to_owned(), ns.namespace().to_owned());
        let (identity, shutdown) = (name.to_owned(), CancellationToken::new());
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let ends = shutdown.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(async {
                let client = client(&kubeconfig).await;
                let address = format!("{identity}:15010");
                let elector = Elector::new(
                    client,
                    &namespace,
                    &identity,
                    &address,
                    TIMING,
                    watch::channel(0).1,
                );
                let handle = tokio::runtime::Handle::current();
                let _ = sender.send((elector.role(), elector.leader_check(), handle));
                elector.run(ends).await;
            });
        });
        let (role, leader_check, runtime) = receiver.await.unwrap();
        Self {
            role,
            leader_check,
            shutdown,
            runtime,
        }
    }

    /// Nothing in it moves until the sender is dropped.
    fn pause(&self) -> mpsc::Sender<()> {
        let (resume, resumed) = mpsc::channel();
        self.runtime.spawn(async move {
            let _ = resumed.recv();
        });
        resume
    }

    async fn leads(&self) -> u64 {
        let mut role = self.role.clone();
        let waits = role.wait_for(Role::leads);
        let role = tokio::time::timeout(assent_e2e::PATIENCE, waits).await;
        match role.expect("it never led").unwrap().clone() {
            Role::Leader { transitions } => transitions,
            Role::Follower { .. } => unreachable!("it was waited for"),
        }
    }

    async fn follows(&self, name: &str) {
        let follows = Role::Follower {
            leader: Some(Leader {
                identity: name.to_owned(),
                address: format!("{name}:15010"),
            }),
        };
        let mut role = self.role.clone();
        let waits = role.wait_for(|role| *role == follows);
        let waited = tokio::time::timeout(assent_e2e::PATIENCE, waits).await;
        waited
            .unwrap_or_else(|_| panic!("it never followed {name}"))
            .unwrap();
    }
}

#[tokio::test]
async fn paused_leader_becomes_a_follower() {
    with_temp_ns(async |ns| {
        let a = Contender::start(&ns, "a").await;
        let first = a.leads().await;
        let b = Contender::start(&ns, "b").await;
        b.follows("a").await;
        assert_eq!(a.leader_check.leads(), Some(first));

        let resume = a.pause();
        let second = b.leads().await;
        assert!(second > first);
        // It has not moved since, and still nobody would take it for the leader.
        assert_eq!(a.leader_check.leads(), None);
        drop(resume);
        a.follows("b").await;
        assert_eq!(b.leader_check.leads(), Some(second));

        // Who leaves in good order makes room at once: nobody waits for the lease to end.
        b.shutdown.cancel();
        assert!(a.leads().await > second);
        let lease = ns.get(&["lease", names::LEASE]).await;
        assert_eq!(lease["spec"]["holderIdentity"], "a");
        a.shutdown.cancel();
        ns.wait(&["lease", names::LEASE], "released", |lease| {
            lease["spec"]["holderIdentity"].is_null()
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn restarted_leader_increments_transitions_and_deleted_lease_is_recreated() {
    with_temp_ns(async |ns| {
        let one = Contender::start(&ns, "a").await;
        let first = one.leads().await;
        // It looks dead to everybody else; its name comes back at once.
        let _dead = one.pause();
        let two = Contender::start(&ns, "a").await;
        let second = two.leads().await;
        assert!(second > first);
        ns.run(&["delete", "lease", names::LEASE]).await;
        let lease = ns.wait_there(&["lease", names::LEASE]).await;
        assert_eq!(lease["spec"]["leaseTransitions"], second);
        assert_eq!(two.leader_check.leads(), Some(second));
        // Somebody else's annotation neither ends the term nor is lost.
        ns.run(&["annotate", "lease", names::LEASE, "theirs=x"])
            .await;
        let renewed = lease["spec"]["renewTime"].clone();
        ns.wait(&["lease", names::LEASE], "renewed", |lease| {
            lease["metadata"]["annotations"]["theirs"] == "x"
                && lease["spec"]["renewTime"] != renewed
        })
        .await;
        eventually("it leads on", async || {
            two.leader_check.leads() == Some(second)
        })
        .await;
        two.shutdown.cancel();
    })
    .await;
}

#[tokio::test]
async fn concurrent_starts_create_one_ca() {
    with_temp_ns(async |ns| {
        let client = client(ns.kubeconfig()).await;
        let open = || {
            let (client, namespace) = (client.clone(), ns.namespace().to_owned());
            async move {
                let keeper =
                    CaManager::open(client, &namespace, Mode::SelfManaged, Lives::default()).await;
                let authority = keeper.unwrap().authority();
                authority.borrow().bundle_pem().to_owned()
            }
        };
        let bundles = futures::future::join_all((0..8).map(|_| open())).await;
        assert!(bundles.iter().all(|bundle| *bundle == bundles[0]));
        publish_bundle(&client, ns.namespace(), &bundles[0])
            .await
            .unwrap();
        let map = ns.get(&["configmap", names::CA]).await;
        assert_eq!(map["data"][names::CA_BUNDLE_KEY], bundles[0]);
    })
    .await;
}

#[tokio::test]
async fn ca_is_rotated_on_request_and_restored_when_deleted() {
    with_temp_ns(async |ns| {
        let client = client(ns.kubeconfig()).await;
        let lives = Lives {
            overlap: Duration::from_secs(2),
            ..Lives::default()
        };
        let open = async || {
            let opened = CaManager::open(client.clone(), ns.namespace(), Mode::SelfManaged, lives);
            opened.await.unwrap()
        };
        let (leader, standby) = (open().await, open().await);
        let (leads, stands_by) = (leader.authority(), standby.authority());
        let shutdown = CancellationToken::new();
        let (_role, role) = watch::channel(Role::Leader { transitions: 1 });
        tokio::spawn(leader.run(role, shutdown.clone()));
        let (_none, none) = watch::channel(Role::Follower { leader: None });
        tokio::spawn(standby.run(none, shutdown.clone()));

        let count = |bundle: &str| bundle.matches("BEGIN").count();
        let old = leads.borrow().bundle_pem().to_owned();
        assert_eq!(count(&old), 1);
        let asks = format!("{}=please", names::ROTATE_ANNOTATION);
        ns.run(&["annotate", "secret", names::CA, &asks]).await;
        let key = |secret: &Value, name: &str| secret["data"][name].clone();
        ns.wait(&["secret", names::CA], "rotated", |secret| {
            !key(secret, "ca-previous.crt").is_null() && key(secret, "ca-next.crt").is_null()
        })
        .await;
        // Both trust both authorities, also the one that does not write.
        eventually("both know", async || {
            let (one, other) = (leads.borrow().clone(), stands_by.borrow().clone());
            let both = count(one.bundle_pem()) == 2 && one.bundle_pem().contains(&old);
            both && one.bundle_pem() == other.bundle_pem()
        })
        .await;
        let leaf = leads.borrow().serving_leaf(&["a".to_owned()], &[]).unwrap();
        assert!(!leaf.chain_pem.contains(&old), "the new one signs");

        let before = ns.get(&["secret", names::CA]).await;
        ns.run(&["delete", "secret", names::CA]).await;
        let after = ns.wait_there(&["secret", names::CA]).await;
        assert_eq!(before["data"], after["data"]);
        shutdown.cancel();
    })
    .await;
}

fn labelled(server: &str) -> Value {
    json!({"app": "x", (names::SERVER_LABEL): server})
}

fn pod(name: &str, labels: &Value) -> String {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "web", "image": "assent.invalid/web"}]},
    });
    pod.to_string()
}

fn stateful_set(server: &str) -> String {
    let set = json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": names::server(server)},
        "spec": {
            "replicas": 2,
            "serviceName": names::headless(server),
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "x"}},
            "template": {
                "metadata": {"labels": labelled(server)},
                "spec": {"containers": [{"name": "web", "image": "assent.invalid/web"}]},
            },
        },
    });
    set.to_string()
}

fn of(token: &str) -> Credential<'_> {
    Credential { token, peer: None }
}

async fn checker(ns: &Kubectl) -> TokenChecker {
    let client = client(ns.kubeconfig()).await;
    let lookup = Live::new(client.clone(), ns.namespace());
    TokenChecker::new(client, ns.namespace(), Arc::new(lookup))
}

#[tokio::test]
async fn member_is_identified_by_its_pod() {
    with_temp_ns(async |ns| {
        ns.apply(&stateful_set("default")).await;
        let name = "policy-server-default-1";
        ns.wait_there(&["pod", name]).await;
        ns.pod_ready(name, "10.244.1.7".parse().unwrap()).await;
        let checker = checker(&ns).await;
        let token = ns.create_token(name).await;
        let replica = checker.replica(of(&token.token)).await.unwrap();
        assert_eq!(
            (&*replica.namespace, &*replica.pod, &*replica.uid),
            (ns.namespace(), name, &*token.uid)
        );
        assert_eq!((&*replica.server, replica.follower), ("default", false));
        assert_eq!(replica.replica_id(), name);
        assert_eq!(
            replica.pod_ips,
            ["10.244.1.7".parse::<std::net::IpAddr>().unwrap()]
        );
        assert!(replica.expires.is_some());

        let wrong = ns.create_token_for(name, "https://elsewhere").await;
        let error = checker.replica(of(&wrong.token)).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        let forged = format!("{}x", token.token);
        let error = checker.replica(of(&forged)).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");

        // Gone: also while its review is remembered, and although its name comes back.
        ns.run(&["delete", "pod", name, "--grace-period=0", "--force"])
            .await;
        ns.wait(&["pod", name], "another one", |pod| {
            pod["metadata"]["uid"] != *token.uid
        })
        .await;
        let error = checker.replica(of(&token.token)).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        let again = ns.create_token(name).await;
        let replica = checker.replica(of(&again.token)).await.unwrap();
        assert_eq!(replica.uid, again.uid);
    })
    .await;
}

#[tokio::test]
async fn label_alone_does_not_make_a_pod_a_member() {
    with_temp_ns(async |ns| {
        assent_e2e::kube::shared().await.install_crds().await;
        ns.apply(&stateful_set("default")).await;
        ns.apply(&pod("posing", &labelled("default"))).await;
        ns.apply(&pod("plain", &json!({}))).await;
        let checker = checker(&ns).await;
        let token = ns.create_token("posing").await;
        let error = checker.identify(of(&token.token)).await.unwrap_err();
        assert!(matches!(error, Error::Forbidden(_)), "{error}");
        // Without the label it is a user like any other, and may do what it was given.
        let token = ns.create_token("plain").await;
        let identity = checker.identify(of(&token.token)).await.unwrap();
        let Identity::User(user) = identity else {
            panic!("{identity:?}");
        };
        assert_eq!(
            user.name,
            format!("system:serviceaccount:{}:default", ns.namespace())
        );
        let error = checker.authorize(&user, Verb::Get, None).await.unwrap_err();
        assert!(matches!(error, Error::Forbidden(_)), "{error}");
        allow(&ns, &user.name).await;
        eventually("the role works", async || {
            checker
                .authorize(&user, Verb::Get, Some("default"))
                .await
                .is_ok()
        })
        .await;
        let error = checker
            .authorize(&user, Verb::Update, None)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Forbidden(_)), "{error}");
    })
    .await;
}

/// Lets a user look at the discovery state.
async fn allow(ns: &Kubectl, user: &str) {
    let name = format!("reader-{}", ns.namespace());
    let rule = [
        "--verb=get",
        "--resource=policyservers.policies.assent.dev/discovery",
    ];
    ns.run(&[&["create", "clusterrole", &name], &rule[..]].concat())
        .await;
    let (role, user) = (format!("--clusterrole={name}"), format!("--user={user}"));
    ns.run(&["create", "clusterrolebinding", &name, &role, &user])
        .await;
}

#[tokio::test]
async fn pod_in_allowed_namespace_is_a_follower() {
    with_temp_ns(async |ours| {
        assent_e2e::kube::shared().await.install_crds().await;
        with_temp_ns(async |theirs| {
            let server = format!("follow-{}", theirs.namespace());
            let policy_server = |namespaces: &[&str]| {
                json!({
                    "apiVersion": "policies.assent.dev/v1alpha1",
                    "kind": "PolicyServer",
                    "metadata": {"name": server},
                    "spec": {"injection": {"allowedNamespaces": namespaces}},
                })
                .to_string()
            };
            ours.apply(&policy_server(&[theirs.namespace()])).await;
            theirs.apply(&pod("app", &labelled(&server))).await;
            let checker = checker(&ours).await;
            let token = theirs.create_token("app").await;
            let replica = checker.replica(of(&token.token)).await.unwrap();
            assert!(replica.follower);
            assert_eq!(replica.replica_id(), format!("app.{}", theirs.namespace()));
            ours.apply(&policy_server(&["elsewhere"])).await;
            let error = checker.replica(of(&token.token)).await.unwrap_err();
            assert!(matches!(error, Error::Forbidden(_)), "{error}");
            ours.run(&["delete", "policyserver", &server]).await;
        })
        .await;
    })
    .await;
}
