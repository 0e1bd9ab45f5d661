//! The objects of PolicyServers.

use assent_e2e::{
    eventually,
    kube::{Kubectl, shared, with_temp_ns},
};
use assent_k8s::workload::{self, Error, Outcome};

use super::*;

fn options(namespace: &str) -> workload::Options {
    workload::Options {
        namespace: namespace.to_owned(),
        image: "example.com/evaluator:v1".to_owned(),
        image_pull_policy: None,
        discovery: format!("https://assent.{namespace}.svc:15010"),
        network_policy: true,
    }
}

/// A PolicyServer in the API server: the garbage collector removes what has no owner.
async fn create(kubectl: &Kubectl, spec: &Value) -> (ParsedServer, String) {
    shared().await.install_crds().await;
    let (object, server) = server(kubectl.namespace(), spec);
    kubectl.apply(&object.to_string()).await;
    let stored = kubectl.get(&["policyserver", &server.name]).await;
    let uid = stored["metadata"]["uid"].as_str().unwrap().to_owned();
    (server, uid)
}

/// Everything that there is of a server, with the versions of the objects.
async fn versions(kubectl: &Kubectl, uid: &str) -> Vec<(String, String)> {
    let kinds = "statefulset,service,poddisruptionbudget,serviceaccount,networkpolicy";
    let list = kubectl.get(&[kinds]).await;
    let items = list["items"].as_array().unwrap().iter();
    let ours = items.filter(|object| object["metadata"]["ownerReferences"][0]["uid"] == uid);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut ours: Vec<_> = ours
        .map(|object| {
            let metadata = &object["metadata"];
            let name = format!("{} {}", text(&object["kind"]), text(&metadata["name"]));
            // A controller writes status meanwhile: what Assent writes is what counts.
            let version = match metadata["generation"].as_i64() {
                Some(generation) => generation.to_string(),
                None => text(&metadata["resourceVersion"]),
            };
            (name, version)
        })
        .collect();
    ours.sort();
    ours
}

fn names(versions: &[(String, String)]) -> Vec<&str> {
    versions.iter().map(|(name, _)| name.as_str()).collect()
}

#[tokio::test]
async fn workload_objects_are_accepted_and_deleted_in_order() {
    with_temp_ns(async |kubectl| {
        let (client, namespace) = (client(&kubectl).await, kubectl.namespace());
        let (server, uid) = create(&kubectl, &json!({"replicas": 2})).await;
        let mut objects = workload::objects(&server, &uid, &options(namespace));
        assert_eq!(
            workload::apply(&client, &objects).await.unwrap(),
            Outcome::Done
        );
        let first = versions(&kubectl, &uid).await;
        let name = format!("policy-server-{namespace}");
        let all = [
            format!("NetworkPolicy {name}"),
            format!("PodDisruptionBudget {name}"),
            format!("Service {name}"),
            format!("Service {name}-headless"),
            format!("ServiceAccount {name}"),
            format!("StatefulSet {name}"),
        ];
        assert_eq!(names(&first), all);

        // Again: nothing is written.
        assert_eq!(
            workload::apply(&client, &objects).await.unwrap(),
            Outcome::Done
        );
        assert_eq!(versions(&kubectl, &uid).await, first);

        objects.network_policy = None;
        assert_eq!(
            workload::apply(&client, &objects).await.unwrap(),
            Outcome::Done
        );
        kubectl.wait_gone(&["networkpolicy", &name]).await;

        // Of another life: nothing is deleted.
        let other = workload::delete(&client, namespace, &server.name, "other").await;
        assert_eq!(other.unwrap(), Outcome::Done);
        assert_eq!(versions(&kubectl, &uid).await.len(), 5);

        let going = workload::delete(&client, namespace, &server.name, &uid).await;
        assert_eq!(
            going.unwrap(),
            Outcome::Waiting(format!("StatefulSet {name}"))
        );
        let account = ["serviceaccount", name.as_str()];
        assert!(
            kubectl.try_get(&account).await.is_ok(),
            "pods still need it"
        );
        eventually("everything is deleted", async || {
            let outcome = workload::delete(&client, namespace, &server.name, &uid).await;
            outcome.unwrap() == Outcome::Done
        })
        .await;
        assert_eq!(versions(&kubectl, &uid).await, []);
    })
    .await;
}

#[tokio::test]
async fn immutable_stateful_set_is_replaced_without_deleting_pods() {
    with_temp_ns(async |kubectl| {
        let (client, namespace) = (client(&kubectl).await, kubectl.namespace());
        let (mut server, uid) = create(&kubectl, &json!({})).await;
        let objects = workload::objects(&server, &uid, &options(namespace));
        workload::apply(&client, &objects).await.unwrap();
        let pod = format!("policy-server-{namespace}-0");
        let before = kubectl.wait_there(&["pod", &pod]).await;
        // 1024Mi is stored as 1Gi, which is no reason to replace it a second time.
        let storage = json!({"size": "1024Mi"});
        server.spec.storage = Some(serde_json::from_value(storage).unwrap());
        let mut objects = workload::objects(&server, &uid, &options(namespace));
        // Its pods would be replaced too, one by one: not what is looked at here.
        let template = |objects: &mut workload::Objects| {
            let strategy = objects.stateful_set.spec.update_strategy.as_mut();
            let strategy = strategy.unwrap();
            strategy.type_ = Some("OnDelete".to_owned());
            strategy.rolling_update = None;
        };
        template(&mut objects);
        let outcome = workload::apply(&client, &objects).await.unwrap();
        let waiting = format!("StatefulSet policy-server-{namespace}");
        assert_eq!(outcome, Outcome::Waiting(waiting));
        eventually("the StatefulSet is there again", async || {
            workload::apply(&client, &objects).await.unwrap() == Outcome::Done
        })
        .await;
        let set = kubectl
            .get(&["statefulset", &format!("policy-server-{namespace}")])
            .await;
        let claims = set["spec"]["volumeClaimTemplates"].as_array().unwrap();
        assert_eq!(claims[0]["metadata"]["name"], "assent-cache");
        let adopted =
            |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"] == set["metadata"]["uid"];
        let after = kubectl.wait(&["pod", &pod], "adopted", adopted).await;
        assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
        assert_eq!(
            workload::apply(&client, &objects).await.unwrap(),
            Outcome::Done
        );
    })
    .await;
}

#[tokio::test]
async fn foreign_objects_survive() {
    with_temp_ns(async |kubectl| {
        let (client, namespace) = (client(&kubectl).await, kubectl.namespace());
        let (server, uid) = create(&kubectl, &json!({})).await;
        let name = format!("policy-server-{namespace}");
        let ports = "--tcp=80:80";
        kubectl
            .run(&["create", "service", "clusterip", &name, ports])
            .await;
        let objects = workload::objects(&server, &uid, &options(namespace));
        let refused = workload::apply(&client, &objects).await;
        assert!(
            matches!(&refused, Err(Error::Foreign(what)) if *what == format!("Service {name}")),
            "{refused:?}"
        );
    })
    .await;
}
